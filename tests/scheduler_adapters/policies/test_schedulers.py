"""What each published scheduler promises, seen in its steps."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_adapters.checks import Step, _Observed, check_policy
from scheduler_adapters.policies.class_priority import ClassPriority
from scheduler_adapters.policies.prefill_first import Orca, PrefillFirst, RequestLevel
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policies.starvation_guard import StarvationGuard
from scheduler_adapters.policy import Policy, load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.metrics import statistic, token_gaps
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests, make_requests, poisson_arrivals_s
from scoring_service.errors import ConfigError

INSTANCE = Instance(
    latency=AffineLatency(base_s=0.01, per_token_s=1e-4), kv_blocks=2000, max_num_seqs=64
)


def run(policy: Policy, requests: Requests, **changes) -> tuple[Timeline, list[Step]]:
    instance = replace(INSTANCE, **changes)
    observed = _Observed(instance.latency)
    return simulate(requests, policy, replace(instance, latency=observed)), observed.steps


def mixed_requests(count: int = 60, *, seed: int = 0, rate_per_s: float = 10.0) -> Requests:
    random = np.random.default_rng(seed)
    return make_requests(
        prompt_tokens=random.integers(1, 900, count),
        output_tokens=random.integers(1, 80, count),
        arrival_s=poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=seed),
        user_class=np.where(np.arange(count) % 2, "paying", "free"),
        tbt_s=np.where(np.arange(count) % 2, 0.1, 0.5),
    )


VARIANTS = {
    "sarathi spf": lambda: Sarathi(order="spf"),
    "slai fcfs fixed 10": lambda: SLAI(order="fcfs", offset=10),
    "slai spf fixed 10": lambda: SLAI(offset=10),
    "slai spf fixed 5": lambda: SLAI(offset=5),
    "slai spf dynamic": SLAI,
    "slai paying first": lambda: SLAI(paying_first=True),
    "slai recompute": lambda: SLAI(evaluate="recompute"),
    "rad small": lambda: RAD(max_started=7, tile=4, chunk=16),
    "rad twin small": lambda: RADTwin(max_started=7, tile=4, chunk=16),
    "round robin 10": lambda: RoundRobin(quantum_tokens=10),
    "class over pars": lambda: ClassPriority(pars()),
    "class over slai": lambda: ClassPriority(SLAI()),
    "guard over slai": lambda: StarvationGuard(SLAI(), after_s=1.0),
    "guard over round robin": lambda: StarvationGuard(RoundRobin(quantum_tokens=10), after_s=1.0),
    "guard over class over pars": lambda: StarvationGuard(ClassPriority(pars()), after_s=1.0),
}


@pytest.mark.parametrize("make_policy", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_keeps_every_law(make_policy):
    assert check_policy(make_policy)


OUT_OF_RANGE = [
    ("slai", {"default_tbt_s": -3}),
    ("slai", {"default_tbt_s": float("nan")}),
    ("slai", {"offset": -1}),
    ("slai", {"offset_below": -1}),
    ("slai", {"offset_above": float("nan")}),
    ("slai", {"memory_limit": 96}),
    ("slai", {"max_decodes": 0}),
    ("slai", {"max_resident": 0}),
    ("vllm-prefill-first", {"max_tokens": 0}),
    ("orca", {"max_batch": 0}),
    ("orca", {"reserved_blocks": 0}),
    ("request-level", {"max_batch": -1}),
    ("rad", {"max_started": 0}),
    ("rad-twin", {"tile": 1.5}),
    ("rad", {"chunk": "many"}),
    ("round-robin", {"quantum_tokens": 0}),
    ("round-robin", {"quantum_tokens": None}),
    ("pascal", {"demote_above_tokens": 0}),
    ("pascal", {"max_decodes": 0}),
    ("pascal", {"min_residency_tokens": -1}),
]


@pytest.mark.parametrize(("name", "wrong"), OUT_OF_RANGE)
def test_a_setting_out_of_range_is_refused_by_its_name_and_value(name, wrong):
    ((setting, value),) = wrong.items()
    with pytest.raises(ConfigError, match=rf"^{setting} is {re.escape(repr(value))}; use "):
        load_policy(name, **wrong)


def test_sarathi_never_exceeds_its_budget_and_never_stalls_a_decode():
    requests = mixed_requests()
    timeline, steps = run(Sarathi(max_tokens=128), requests)
    assert max(step.tokens for step in steps) <= 128
    # Every decode runs in every step: nobody's tokens have a gap of more than one step.
    assert len(np.unique(timeline.runs[:, 0])) == len(timeline.runs)


def test_prefill_first_never_mixes_and_takes_whole_prompts():
    _, steps = run(PrefillFirst(), mixed_requests(), max_tokens=4096)
    assert all(not step.num_decodes or not step.prefills for step in steps)
    assert all(processed == 0 for step in steps for processed, _ in step.prefills)
    widths = [len(s.prefills) * max(c for _, c in s.prefills) for s in steps if s.prefills]
    assert max(widths) <= 4096


def test_orca_with_reserved_blocks_runs_as_many_as_could_all_be_the_longest():
    requests = make_requests(prompt_tokens=[16] * 30, output_tokens=[20] * 30)
    _, paged = run(Orca(max_batch=16), requests, kv_blocks=40)
    timeline, reserved = run(Orca(max_batch=16, reserved_blocks=8), requests, kv_blocks=40)
    assert max(step.num_decodes + len(step.prefills) for step in paged) == 16
    assert max(step.num_decodes + len(step.prefills) for step in reserved) == 5
    assert timeline.preemptions.sum() == 0


def test_orca_mixes_whole_prompts_into_a_bounded_batch():
    _, steps = run(Orca(max_batch=5), mixed_requests())
    assert all(processed == 0 for step in steps for processed, _ in step.prefills)
    assert max(step.num_decodes + len(step.prefills) for step in steps) == 5
    assert any(step.num_decodes and step.prefills for step in steps)


def test_nobody_joins_a_request_level_batch_before_it_is_done():
    timeline, steps = run(RequestLevel(max_batch=4), mixed_requests(), max_tokens=None)
    assert max(len(step.prefills) for step in steps) == 4
    starts_s = np.unique(timeline.scheduled_s)
    for start_s in starts_s:
        earlier = timeline.scheduled_s < start_s
        assert (timeline.finished_s[earlier] <= start_s).all()


def test_rad_prefills_one_request_at_a_time_in_tiles_and_decodes_alone():
    timeline, steps = run(RAD(max_started=20, tile=8, chunk=256), mixed_requests(rate_per_s=50))
    for step in steps:
        assert not (step.num_decodes and step.prefills)
        assert len(step.prefills) <= 1
        assert step.tokens <= max(256, 8)
    assert max(step.num_decodes for step in steps) == 8
    assert np.isfinite(timeline.finished_s).all()


def test_the_rad_twin_prefills_a_whole_cycle_before_it_decodes():
    requests = make_requests(prompt_tokens=np.full(30, 100), output_tokens=np.full(30, 10))
    timeline, steps = run(RADTwin(max_started=12, tile=4, chunk=256), requests)
    kinds = ["P" if step.prefills else "D" for step in steps]
    assert "".join(kinds[:13]) == "P" * 12 + "D"
    assert max(step.num_decodes for step in steps) == 4
    twelve = np.sort(timeline.first_token_s)[:12]
    assert twelve[-1] < np.sort(timeline.finished_s)[0]


def test_rad_has_the_lower_ttft_and_its_twin_the_lower_tbt():
    requests = mixed_requests(200, rate_per_s=8)
    rad, _ = run(RAD(max_started=64, tile=16), requests)
    twin, _ = run(RADTwin(max_started=64, tile=16), requests)

    def mean_ttft_s(timeline: Timeline) -> float:
        return float((timeline.first_token_s - requests.arrival_s).mean())

    assert mean_ttft_s(rad) <= mean_ttft_s(twin)
    # Here the twin's first token comes with the prefill, so the wait for its decode is a gap too:
    # one per request, beyond the 90th percentile.
    assert statistic(*token_gaps(twin)).p90 < statistic(*token_gaps(rad)).p90


def test_slai_with_no_time_to_lose_serves_as_sarathi_with_the_same_order():
    requests = mixed_requests(120, rate_per_s=12)
    impatient = replace(requests, tbt_s=np.full(len(requests), 1e-9))
    slai, _ = run(SLAI(order="fcfs", offset=10), impatient)
    sarathi, _ = run(Sarathi(), impatient)
    np.testing.assert_array_equal(slai.finished_s, sarathi.finished_s)


def test_slai_defers_decodes_with_time_to_lose_and_the_first_token_comes_earlier():
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


def test_round_robin_serves_the_young_first():
    requests = make_requests(prompt_tokens=[16] * 3, output_tokens=[40, 40, 5])
    requests = replace(requests, arrival_s=np.array([0.0, 0.0, 0.2]))
    # Room for two: the newcomer takes the place of one that has used a quantum.
    timeline, _ = run(
        RoundRobin(quantum_tokens=10), requests, kv_blocks=8, max_num_seqs=2, watermark_fraction=0.0
    )
    assert timeline.preemptions.sum() >= 1
    assert timeline.finished_s[2] < timeline.finished_s[:2].min()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_round_robin_with_an_endless_quantum_is_fcfs(seed):
    requests = mixed_requests(40, seed=seed)
    endless, _ = run(RoundRobin(quantum_tokens=10**9), requests)
    plain, _ = run(Sarathi(max_tokens=2048), requests)
    np.testing.assert_array_equal(endless.finished_s, plain.finished_s)


def test_the_better_class_waits_less():
    requests = mixed_requests(200, rate_per_s=40)
    timeline, _ = run(ClassPriority(Sarathi()), requests)
    ttft_s = timeline.first_token_s - requests.arrival_s
    is_paying = requests.user_class == "paying"
    assert ttft_s[is_paying].mean() < 0.5 * ttft_s[~is_paying].mean()
