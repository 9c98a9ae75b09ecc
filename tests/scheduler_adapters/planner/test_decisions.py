"""Steps planned without an engine are those of the slow reference engine, whatever the policy."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.prefill_first import Orca, PrefillFirst
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import Capability, LoadView, Rank, RequestView, StepRule
from scheduler_adapters.workload.requests import Requests, make_requests
from tests.scheduler_adapters.engines import decisions
from tests.scheduler_adapters.planner.fake_engine import CachingEngine, FakeEngine

LIMITS: dict[str, Any] = {"seats": 8, "budget": 256, "blocks": 30, "block_tokens": 16}
workload = partial(decisions.workload, count=20)


def assert_same(make: Callable[[], Policy], requests: Requests, **limits: Any) -> None:
    settings = {**LIMITS, **limits}
    expected = decisions.steps_of_simulator(make(), requests, **settings)
    made = CachingEngine if "shared" in limits else FakeEngine
    decisions.assert_same_steps(made(make(), **settings).serve(requests), expected)


class DisplacingDice(decisions.Dice):
    """Rules of steps in which waiting requests displace residents, with every other limit."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, displaces=True)

    def step_rule(self, load: LoadView) -> StepRule:
        dice = self.dice("rule", load.step)
        return StepRule(
            displace=True,
            max_resident=dice.choice([None, 2, 4]),
            max_admissions=dice.choice([None, 0, 1, 2]),
            max_decodes=dice.choice([None, None, 2]),
        )


class WholeDice(decisions.Dice):
    """Rules of steps that take prompts whole, and count them padded or not."""

    def step_rule(self, load: LoadView) -> StepRule:
        return replace(
            super().step_rule(load),
            max_tokens=None,
            chunk=None,
            whole_prompts=True,
            padded_tokens=self.dice("rule", load.step).random() < 0.5,
        )


KINDS: dict[str, Callable[[int], Policy]] = {
    "limits": lambda seed: decisions.Dice(seed),
    "chunks": lambda seed: decisions.Dice(seed, chunks="every"),
    "displacing": lambda seed: decisions.Dice(seed, displaces=True),
    "displacing within limits": DisplacingDice,
    "whole prompts": WholeDice,
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_any_ranks_and_rules_give_the_steps_of_the_reference(kind, seed):
    requests = workload(seed, longest=90)
    if "displacing" in kind:
        requests = replace(requests, prompt_tokens=requests.prompt_tokens // 3 + 1)
    assert_same(partial(KINDS[kind], seed), requests)


@pytest.mark.parametrize("seed", range(6))
def test_with_scarce_memory_the_same_requests_are_evicted(seed):
    requests = workload(seed, longest=60)
    small = {"blocks": 15, "block_tokens": 8, "budget": 24}
    assert_same(lambda: decisions.Dice(seed, chunks="every"), requests, **small)


@pytest.mark.parametrize("seed", range(2))
def test_an_admission_leaves_the_watermark_free(seed):
    requests = workload(seed, longest=60)
    assert_same(lambda: decisions.Dice(seed), requests, watermark_fraction=0.25)
    assert_same(FCFS, requests, watermark_fraction=0.25)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [{}, {"blocks": 18, "block_tokens": 8}], ids=["ample", "scarce"])
def test_shared_beginnings_give_the_steps_of_the_reference(memory, kind, seed):
    requests = workload(seed, longest=64 if memory else 90)
    if "displacing" in kind:
        requests = replace(requests, prompt_tokens=requests.prompt_tokens // 2 + 1)
    shared = decisions.beginnings(seed, requests, tokens=40)
    assert_same(partial(KINDS[kind], seed), requests, shared=shared, **memory)


class FirstPrefillGoes(FCFS):
    """Prefills of one token per step; the second request is the first to be evicted."""

    traits = Traits(requires=frozenset({Capability.EVICT}))

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank((request.number,), evict_key=(float(request.number == 1),))

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(chunk=1)


def test_prefills_behind_an_evicted_one_run_all_the_same():
    requests = make_requests(prompt_tokens=[12, 32, 24], output_tokens=[20, 2, 2])
    assert_same(FirstPrefillGoes, requests, blocks=5)


class Displacing(FCFS):
    """FCFS that displaces residents."""

    traits = Traits(requires=frozenset({Capability.EVICT}))

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(displace=True)


def test_who_displaces_has_a_block_for_the_next_token():
    requests = make_requests(prompt_tokens=[16, 16], output_tokens=[3, 3])
    assert_same(Displacing, requests, blocks=2)
    assert FakeEngine(Displacing(), **{**LIMITS, "blocks": 2}).serve(requests)[0] == {0: 16}


@pytest.mark.parametrize("blocks", [40, 12])
def test_pascal_evicts_for_blocks_and_never_for_a_seat_alone(blocks):
    requests, settings = decisions.more_than_seats(LIMITS["seats"]), {**LIMITS, "blocks": blocks}
    assert_same(lambda: Pascal(quantum_tokens=4), requests, blocks=blocks)
    steps = FakeEngine(Pascal(quantum_tokens=4), **settings).serve(requests)
    assert decisions.computed_once(steps, requests) == (blocks != 12)
    assert max(len(step) for step in steps) == LIMITS["seats"]


RIVALS = decisions.rivals()
POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": FCFS,
    "pars": lambda: pars(starve_after_s=0.5),
    "overtaking": lambda: pars(guard="overtaking", times=0.5, at_least=2),
    **decisions.small_policies(LIMITS["budget"]),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_gives_the_steps_of_the_reference(name, seed):
    assert_same(POLICIES[name], workload(seed, longest=90))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_gives_the_steps_of_the_reference(name, seed):
    requests = workload(seed, longest=90)
    if "counter" not in name:  # the written-out shares expect usual lengths
        requests = decisions.predicted(seed, requests)
    assert_same(RIVALS[name], requests)
    assert_same(RIVALS[name], requests, shared=decisions.beginnings(seed, requests, tokens=48))


@pytest.mark.parametrize("seed", range(3))
def test_pascal_sees_the_end_of_thinking_of_the_reference(seed):
    requests = workload(seed, longest=90)
    dice = np.random.default_rng(seed)
    thinking = np.minimum(dice.integers(2, 60, len(requests)), requests.output_tokens)
    assert_same(
        lambda: Pascal(quantum_tokens=12, demote_above_tokens=90),
        replace(requests, reasoning_tokens=thinking),
    )


PRIORITISED: dict[str, tuple[Callable[[int], Policy], int]] = {
    "fcfs": (lambda _: FCFS(), 30),
    "displacing": (lambda seed: decisions.Dice(seed, displaces=True), 30),
    "whole prompts": (WholeDice, 30),
    "round robin": (lambda _: RoundRobin(quantum_tokens=10), 30),
    "pascal": (lambda _: Pascal(quantum_tokens=12, demote_above_tokens=90), 30),
    "orca": (lambda _: Orca(max_batch=4), 30),
    "prefill first": (lambda _: PrefillFirst(max_tokens=256, max_resident=6), 30),
    "sarathi by prompt": (lambda _: Sarathi(order="spf", max_tokens=4096, max_resident=6), 30),
    "a guard around": (lambda _: pars(starve_after_s=0.5), 30),
    # Those it would not evict for each other, it does by priority: not here.
    "slai": (lambda _: SLAI(max_tokens=4096, max_resident=6, max_decodes=3), 300),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", PRIORITISED)
def test_a_priority_precedes_lane_key_and_evict_key(name, seed):
    """In steps with room for every prefill; with less, one may wait for tokens."""
    make, blocks = PRIORITISED[name]
    requests = workload(seed, longest=70)
    if name == "pascal":
        thinking = np.minimum(requests.output_tokens // 2 + 2, requests.output_tokens)
        requests = replace(requests, reasoning_tokens=thinking)
    limits = {**LIMITS, "budget": 4096, "blocks": blocks}
    expected = decisions.steps_of_simulator(decisions.ByPriority(make(seed)), requests, **limits)
    engine = FakeEngine(make(seed), **limits, priorities=decisions.priorities_of(requests))
    decisions.assert_same_steps(engine.serve(requests), expected)


@pytest.mark.parametrize("name", POLICIES)
def test_among_equal_priorities_the_policy_decides(name):
    requests = workload(1, longest=90)
    equal = FakeEngine(POLICIES[name](), **LIMITS, priorities=[-(2**40)] * len(requests))
    decisions.assert_same_steps(
        equal.serve(requests), FakeEngine(POLICIES[name](), **LIMITS).serve(requests)
    )
