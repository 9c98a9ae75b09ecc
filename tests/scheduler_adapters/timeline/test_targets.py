"""Targets: their parts, and runs that meet or miss them."""

from scheduler_adapters.timeline.targets import is_met, target_parts, targets_text
from scheduler_adapters.timeline.timeline import timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests


def test_a_target_may_be_a_share_and_a_class_have_a_dot():
    assert target_parts("qoe_violations.paying") == ("qoe_violations", "paying")
    assert target_parts("qoe_violations") == ("qoe_violations", "")
    assert target_parts("tbt_s.p99.team.a") == ("tbt_s.p99", "team.a")
    assert target_parts("tbt_s.p99") == ("tbt_s.p99", "")
    assert targets_text({"ttft_s.p99": 1.0, "qoe_violations": 0.05}) == (
        "ttft_s.p99 <= 1 s, qoe_violations <= 0.05"
    )


def test_a_run_meets_targets_of_all_and_of_a_class():
    requests = make_requests(
        prompt_tokens=[1, 1], output_tokens=[1, 1], user_class=["paying", "free"]
    )
    timeline = timeline_from_token_times(requests, [[1.0], [3.0]])
    assert is_met({"ttft_s.mean": 2.0, "ttft_s.p99.paying": 1.0}, timeline)
    assert not is_met({"ttft_s.p99.free": 2.9}, timeline)
    assert is_met({"qoe_violations": 0.0}, timeline)
    assert not is_met({"ttft_s.p99.absent": 9.0}, timeline)
    assert not is_met({"ttft_s.p99": 9.0}, timeline_from_token_times(requests, [[1.0], []]))
