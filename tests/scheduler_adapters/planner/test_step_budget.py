"""Filling one step by numbers: each limit alone, the costs of prefills, the order of eviction."""

from math import inf

import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.planner.step_budget import StepBudget, evict_order, fewest_victims
from scheduler_adapters.views import UNLIMITED, Rank, StepRule


def budget_of(rule: StepRule = UNLIMITED, *, max_tokens: float | None = 100, **more) -> StepBudget:
    return StepBudget(rule, max_tokens=max_tokens, max_num_seqs=8, **more)


@pytest.mark.parametrize(
    ("rule", "name", "limit"),
    [
        (StepRule(max_tokens=200, max_resident=9), "max_tokens", 100),
        (StepRule(max_tokens=30), "max_tokens", 30),
        (StepRule(max_tokens=200, max_resident=9), "seats", 8),
        (StepRule(max_resident=3), "seats", 3),
        (UNLIMITED, "max_decodes", inf),
        (StepRule(max_admissions=0), "max_admissions", 0),
    ],
)
def test_a_rule_only_tightens_the_limits_of_the_engine(rule, name, limit):
    assert getattr(budget_of(rule), name) == limit


def test_decodes_stop_at_the_cap_and_at_the_last_token():
    budget = budget_of(StepRule(max_decodes=3))
    assert budget.place_decodes(5) == 3
    assert (budget.takes_decodes(), budget.place_decodes(5), budget.tokens) == (False, 0, 97)
    full = budget_of(max_tokens=2)
    full.place_decodes(1)
    assert full.takes_decodes()
    full.place_decodes(1)
    assert not full.takes_decodes()


def test_unmixed_steps_take_the_first_kind_only():
    prefilling, decoding = (budget_of(StepRule(mixed=False)) for _ in range(2))
    prefilling.place_prefill(5)
    assert not prefilling.takes_decodes()
    assert prefilling.place_decodes(1) == 0
    assert prefilling.chunk(5) == 5
    decoding.place_decodes(1)
    assert decoding.chunk(5) == 0
    assert decoding.takes_decodes()


@pytest.mark.parametrize(
    ("rule", "placed", "tokens", "chunk"),
    [
        (UNLIMITED, [], 70, 70),
        (UNLIMITED, [60], 70, 40),
        (UNLIMITED, [100], 70, 0),
        (StepRule(chunk=16), [60], 70, 16),
        (StepRule(max_prefills=1), [60], 1, 0),
        (StepRule(whole_prompts=True), [60], 40, 40),
        (StepRule(whole_prompts=True), [60], 41, 0),
        (StepRule(whole_prompts=True, padded_tokens=True), [60], 40, 0),
        (StepRule(whole_prompts=True, padded_tokens=True), [50], 40, 40),
    ],
)
def test_a_chunk_is_what_every_limit_leaves(rule, placed, tokens, chunk):
    budget = budget_of(rule)
    for tokens_placed in placed:
        budget.place_prefill(tokens_placed)
    assert budget.chunk(tokens) == chunk


@pytest.mark.parametrize(("exceeds", "chunk"), [(True, 500), (False, 0)])
def test_a_prompt_above_the_budget_runs_alone_if_it_can(exceeds, chunk):
    budget = budget_of(StepRule(whole_prompts=True), exceeds_budget=exceeds)
    assert budget.chunk(500) == chunk
    budget.place_prefill(10)
    assert budget.chunk(500) == 0


def test_a_chunk_without_any_limit_is_a_whole_number():
    assert isinstance(budget_of(max_tokens=None).chunk(7), int)
    assert isinstance(budget_of(max_tokens=3.0).chunk(7), int)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9))
def test_padded_prefills_cost_their_number_times_the_longest(chunks):
    budget = budget_of(StepRule(padded_tokens=True), max_tokens=10_000)
    for chunk in chunks:
        budget.place_prefill(chunk)
    assert 10_000 - budget.tokens == len(chunks) * max(chunks)
    budget.begin()
    assert (budget.tokens, budget.num_prefills, budget.longest) == (10_000, 0, 0)


def test_admission_ends_at_the_last_seat_and_at_the_cap():
    budget = budget_of(StepRule(max_admissions=1))
    assert budget.admits(7)
    assert not budget.admits(8)
    budget.num_admissions += 1
    assert not budget.admits(0)


def test_the_greatest_evict_key_and_the_latest_go_first():
    ranks = [(Rank(evict_key=None), 9), (Rank(), 3), (Rank(), 5), (Rank(evict_key=(1.0,)), 0)]
    order = sorted(ranks, key=lambda entry: evict_order(*entry))
    assert [number for _, number in order] == [9, 3, 5, 0]
    assert not evict_order(Rank(evict_key=None), 9)[0]


@pytest.mark.parametrize(
    ("free_blocks", "free_seats", "victims"),
    [
        (0, 0, []),
        (0, -1, None),  # it waits for a seat
        (-1, 0, ["a"]),
        (-2, -1, ["a"]),
        (-3, -1, ["a", "b"]),
        (-3, -3, None),
        (-5, 0, None),
    ],
)
def test_residents_go_for_blocks_and_their_seats_come_with_them(free_blocks, free_seats, victims):
    read = []

    def worse():
        for name, freed_blocks in (("a", 2), ("b", 4)):
            read.append(name)
            yield name, freed_blocks

    assert fewest_victims(free_blocks, free_seats, worse()) == victims
    assert len(read) == min(2, -(free_blocks // 2))
