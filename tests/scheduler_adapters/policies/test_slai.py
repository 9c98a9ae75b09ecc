"""SLAI: deferred decodes, critical decodes, and the order of new requests."""

from dataclasses import replace

import numpy as np

from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.timeline.latency_metrics import statistic, token_gaps
from scheduler_adapters.timeline.timeline import Timeline
from tests.scheduler_adapters.policies.small_runs import mixed_requests, run


def test_slai_with_no_time_to_lose_serves_as_sarathi_does():
    requests = mixed_requests(120, rate_per_s=12)
    impatient = replace(requests, tbt_s=np.full(len(requests), 1e-9))
    slai, _ = run(SLAI(order="fcfs", offset=10), impatient)
    sarathi, _ = run(Sarathi(), impatient)
    np.testing.assert_array_equal(slai.finished_s, sarathi.finished_s)


def test_slai_defers_decodes_with_slack_for_earlier_first_tokens():
    requests = mixed_requests(300, rate_per_s=12, seed=3)
    patient = replace(requests, tbt_s=np.full(len(requests), 0.5))
    slai, _ = run(SLAI(), patient)
    sarathi, _ = run(Sarathi(order="spf"), patient)

    def median_ttft_s(timeline: Timeline) -> float:
        return float(np.median(timeline.first_token_s - requests.arrival_s))

    assert median_ttft_s(slai) < median_ttft_s(sarathi)
    assert len(slai.runs) > len(sarathi.runs)


def test_slai_lets_those_wait_for_tokens_who_can():
    requests = mixed_requests(300, rate_per_s=9, seed=4)

    def p99_tbt_s(policy: Policy) -> tuple[float, float]:
        timeline, _ = run(policy, requests)
        classes = [timeline.take(requests.user_class == name) for name in ("paying", "free")]
        paying, free = (statistic(*token_gaps(part)).p99 for part in classes)
        return paying, free

    paying_s, free_s = p99_tbt_s(SLAI())
    assert paying_s < free_s <= 0.5
    cautious_s, _ = p99_tbt_s(SLAI(offset=10))
    assert cautious_s <= 0.1
