"""Ranks and rules of each policy, by hand from the papers: keys, levels, validity, defaults."""

from math import inf, nextafter
from typing import Any

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.prefill_first import Orca, PrefillFirst
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import ShortestPredicted, pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import load_policy
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, StepRule

WAITING, PREFILL, REASONING, ANSWERING = Phase


def view(phase: Phase = WAITING, **changes: Any) -> RequestView:
    fields = {"request_id": "r", "number": 0, "arrival_s": 10.0, "prompt_tokens": 100}
    return RequestView(**(fields | changes), phase=phase)


PUBLISHED: dict[str, StepRule] = {
    "fcfs": StepRule(),
    "pars": StepRule(),
    "sarathi": StepRule(max_tokens=512, max_resident=128),
    "vllm-prefill-first": StepRule(
        max_tokens=4096, max_resident=256, mixed=False, whole_prompts=True, padded_tokens=True
    ),
    "orca": StepRule(max_resident=32, whole_prompts=True),
    "request-level": StepRule(max_resident=8, whole_prompts=True),
    "slai": StepRule(max_tokens=512, max_resident=128, max_decodes=128),
    "rad": StepRule(max_prefills=1, max_admissions=1, max_decodes=128, chunk=256, mixed=False),
    "round-robin": StepRule(displace=True),
    "pascal": StepRule(displace=True),
}


@pytest.mark.parametrize(("name", "rule"), PUBLISHED.items())
def test_the_first_step_of_each_has_the_published_limits(name, rule):
    assert load_policy(name).step_rule(LoadView(num_waiting=3, total_blocks=1000)) == rule


LEAST_ONE = (
    "orca.max_batch orca.reserved_blocks request-level.max_batch rad.max_started rad.tile "
    "rad.chunk round-robin.quantum_tokens pascal.quantum_tokens pascal.demote_above_tokens "
    "pascal.max_decodes slai.max_decodes"
)


@pytest.mark.parametrize("named", LEAST_ONE.split())
def test_one_is_the_least_of_what_must_get_work_done(named):
    name, setting = named.split(".")
    load_policy(name, **{setting: 1})
    with pytest.raises(ConfigError, match=f"{setting} is 0; use a whole number, 1 or more"):
        load_policy(name, **{setting: 0})


def test_slai_takes_its_settings_up_to_their_bounds():
    SLAI(default_tbt_s=1e-9, memory_limit=0, offset=0)
    SLAI(memory_limit=1, offset_below=0, offset_above=0)


def test_sarathi_ranks_once_by_arrival_or_by_prompt_in_waiting():
    assert Sarathi().rank(view(), LoadView()) == Rank(sticky=True)
    shortest = Sarathi(order="spf")
    assert shortest.rank(view(), LoadView()) == Rank((100,))
    assert shortest.rank(view(PREFILL), LoadView()) == Rank()
    assert shortest.rank(view(ANSWERING), LoadView()) == Rank()


@pytest.mark.parametrize("policy", [PrefillFirst(), RAD(), RADTwin()])
def test_prefills_have_a_lane_before_the_decodes(policy):
    assert [policy.rank(view(phase), LoadView()).lane for phase in Phase] == [0, 0, 1, 1]


def test_orca_reserves_for_the_longest_and_runs_one_at_least():
    orca = Orca(max_batch=16, reserved_blocks=10)
    for blocks, expected in {99: 9, 100: 10, 9: 1, 19: 1, 20: 2, 1000: 16}.items():
        rule = orca.step_rule(LoadView(total_blocks=blocks))
        assert rule == StepRule(max_resident=expected, whole_prompts=True)
        assert orca.step_rule(LoadView(total_blocks=blocks)) is rule


def test_shortest_predicted_ranks_waiting_requests_by_score_only():
    policy = ShortestPredicted()
    assert policy.rank(view(score=-2.5), LoadView()) == Rank((-2.5,))
    assert policy.rank(view(score=0.0), LoadView()) == Rank((0.0,))
    assert policy.rank(view(), LoadView()) == Rank()
    assert policy.rank(view(median_score=3.0), LoadView()) == Rank((3.0,))
    assert policy.rank(view(score=5.0, median_score=3.0), LoadView()) == Rank((5.0,))
    assert policy.rank(view(PREFILL, score=1.0), LoadView()) == Rank()
    assert policy.rank(view(PREFILL, median_score=1.0), LoadView()) == Rank()
    assert pars(guard="none").rank(view(score=1.0), LoadView(now_s=1e9)) == Rank((1.0,))


def decode(**changes: Any) -> RequestView:
    return view(ANSWERING, last_token_s=20.0, **changes)


def slai_load(now_s: float, used_blocks: int = 0) -> LoadView:
    return LoadView(now_s=now_s, mean_step_s=0.01, used_blocks=used_blocks, total_blocks=100)


def test_a_decode_is_critical_from_its_last_schedulable_time_on():
    # The last token at 20 s, 0.5 s to the next, 5 mean steps of 10 ms before that.
    last_s = 20.5 - 5 * 0.01
    deferred = SLAI().rank(decode(tbt_s=0.5), slai_load(20.1))
    critical = Rank((last_s,), 0, inf, 1, None, None, 0.5)
    assert deferred == Rank((last_s,), 2, last_s, 1, critical, None, 0.5)
    assert SLAI().rank(decode(tbt_s=0.5), slai_load(last_s)) == critical
    assert SLAI().rank(decode(tbt_s=0.5), slai_load(nextafter(last_s, 0))).lane == 2


def test_a_decode_without_a_target_has_the_default_one():
    assert SLAI().rank(decode(), slai_load(20.0)).key == (20.2 - 0.05,)
    assert SLAI(default_tbt_s=1.0).rank(decode(), slai_load(20.0)).group == 1.0
    assert SLAI().rank(view(ANSWERING, tbt_s=0.5), slai_load(0.0)).key == (0.5 - 0.05,)


@pytest.mark.parametrize(("used_blocks", "steps"), [(0, 5), (95, 5), (96, 10), (100, 10)])
def test_the_margin_grows_where_memory_is_short(used_blocks, steps):
    rank = SLAI().rank(decode(tbt_s=0.5), slai_load(20.0, used_blocks))
    assert rank.key == (20.5 - steps * 0.01,)
    fixed = SLAI(offset=7).rank(decode(tbt_s=0.5), slai_load(20.0, used_blocks))
    assert fixed.key == (20.5 - 7 * 0.01,)


def test_new_requests_go_by_prompt_and_class_then_by_admission():
    assert SLAI().rank(view(), LoadView()) == Rank((100,), 1)
    assert SLAI(order="fcfs").rank(view(), LoadView()) == Rank((), 1)
    paying = SLAI(paying_first=True)
    assert paying.rank(view(user_class="free"), LoadView()) == Rank((1.0, 100), 1)
    assert paying.rank(view(user_class="paying"), LoadView()) == Rank((0.0, 100), 1)
    assert SLAI().rank(view(PREFILL, admission_number=7), LoadView()) == Rank(
        (7.0,), 1, evict_key=(7.0,)
    )
    assert SLAI().rank(view(PREFILL), LoadView()).key == (0.0,)


def test_round_robin_ranks_by_quanta_used_and_time_of_joining():
    policy = RoundRobin(quantum_tokens=10)
    request = view(ANSWERING, generated_tokens=9)
    assert policy.rank(request, LoadView(now_s=1.0)) == Rank(
        (0, 1.0), valid_tokens=1, evict_key=(0, 1.0)
    )
    request.generated_tokens = 10
    assert policy.rank(request, LoadView(now_s=2.0)) == Rank(
        (1, 2.0), valid_tokens=10, evict_key=(1, 2.0)
    )
    request.generated_tokens = 13
    assert policy.rank(request, LoadView(now_s=3.0)).key == (1, 2.0)
    assert RoundRobin().rank(view(), LoadView()).valid_tokens == 500
    assert RoundRobin(offload=True).step_rule(LoadView()) == StepRule(displace=True, offload=True)


def test_pascal_puts_reasoning_first_and_counts_quanta_by_phase():
    policy = Pascal(quantum_tokens=10)
    request = view(REASONING, generated_tokens=14, thinking_tokens=14)
    key = (1, 3.0)
    rank = policy.rank(request, LoadView(now_s=3.0))
    assert rank == Rank(key, 0, valid_tokens=6, evict_key=(0, *key))
    request.phase, request.generated_tokens, request.thinking_tokens = ANSWERING, 35, 14
    rank = policy.rank(request, LoadView(now_s=4.0))
    assert rank == Rank((2, 4.0), 1, valid_tokens=9, evict_key=(1, 2, 4.0))
    # Evicted while answering: it waits in the answering queue.
    request.phase = WAITING
    assert policy.rank(request, LoadView(now_s=5.0)).lane == 1


@pytest.mark.parametrize(("generated", "lane", "left"), [(0, 0, 21), (20, 0, 1), (21, 1, 500)])
def test_pascal_demotes_a_request_above_the_threshold_of_context(generated, lane, left):
    policy = Pascal(demote_above_tokens=120)
    request = view(REASONING, generated_tokens=generated, thinking_tokens=generated)
    rank = policy.rank(request, LoadView())
    assert (rank.lane, rank.valid_tokens) == (lane, left)
    assert Pascal().rank(view(), LoadView()).valid_tokens == 500
    assert Pascal().rank(view(prompt_tokens=5000), LoadView()).lane == 0
    assert Pascal().rank(view(prompt_tokens=5001), LoadView()).lane == 1
