"""Decode batches: state by one counter equals counting each member."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_adapters.simulator.engine.request_state import (
    DecodeBatch,
    PriorityLevel,
    RequestState,
)
from scheduler_adapters.timeline.columns import TimelineRecord
from scheduler_adapters.views import Rank, RequestView

SIZE = 16


def state_of(row: int, context: int, output_tokens: int = 50, thinks: int = 0) -> RequestState:
    """A request that has its first token."""
    view = RequestView(str(row), row, 0.0, context - 1)
    state = RequestState(view, output_tokens, thinks, rank=Rank())
    state.context = context
    return state


def record_of(count: int) -> TimelineRecord:
    record = TimelineRecord()
    record.add_rows(count)
    return record


@given(st.lists(st.integers(2, 60), min_size=1, max_size=9), st.integers(0, 40))
def test_context_and_growth_are_sums_over_the_members(contexts, steps):
    batch = DecodeBatch(PriorityLevel(0), None, SIZE)
    for row, context in enumerate(contexts):
        batch.join(state_of(row, context))
    for tick in range(steps):
        batch.advance(tick, float(tick))
    assert batch.context == sum(contexts) + steps * len(contexts)
    assert batch.grows() == sum((context + steps - 1) % SIZE == 0 for context in contexts)
    assert batch.level.count == batch.count == len(contexts)


def test_a_member_leaves_with_its_tokens_and_the_steps_it_missed_are_not_among_them():
    record, batch = record_of(2), DecodeBatch(PriorityLevel(0), None, SIZE)
    stays, leaves = state_of(0, 10), state_of(1, 20)
    batch.join(stays)
    for tick in (0, 1):
        batch.advance(tick, float(tick))
    batch.join(leaves)
    for tick in (3, 4, 7):
        batch.advance(tick, float(tick))
    record.tick_s.extend(range(8))
    batch.leave(leaves, record)
    assert (leaves.context, leaves.last_token_s, leaves.batch) == (23, 7.0, None)
    assert record.token_s(leaves.run_ticks) == [3, 4, 7]
    batch.leave(stays, record)
    assert record.token_s(stays.run_ticks) == [0, 1, 3, 4, 7]
    assert batch.level.batches == []


def test_the_next_event_is_the_end_of_thinking_the_end_of_a_rank_or_the_last_token():
    batch = DecodeBatch(PriorityLevel(0), None, SIZE)
    thinks, asks, ends = state_of(0, 5, 9, 3), state_of(1, 5, 9), state_of(2, 5, 6)
    asks.rank_until = 2.5
    for live in (thinks, asks, ends):
        batch.join(live)
    due = {}
    for tick in range(5):
        assert batch.next_due == inf or batch.next_due >= batch.counter
        batch.advance(tick, float(tick))
        due[batch.counter] = [live.row for live in batch.due()]
    # Each has one token when it joins: the third comes after two steps, the sixth after five.
    assert due == {1: [], 2: [0, 1], 3: [], 4: [], 5: [2]}


@pytest.mark.parametrize("moving", [[0], [0, 2], [1, 2]])
def test_a_split_and_a_merge_give_the_batch_back(moving):
    record, batch = record_of(3), DecodeBatch(PriorityLevel(0), Rank(group="all"), SIZE)
    lives = [state_of(row, 10 + row) for row in range(3)]
    for live in lives:
        batch.join(live)
    batch.advance(0, 0.0)
    part = batch.part([lives[row] for row in moving])
    assert sorted(part.members) == moving
    assert batch.count + part.count == batch.level.count == 3
    part.advance(1, 1.0)
    batch.advance(2, 2.0)
    record.tick_s.extend(range(3))
    batch.absorb(part, record)
    assert batch.count == batch.level.count == 3
    assert batch.context == 10 + 11 + 12 + 2 * 3
    assert batch.level.batches == [batch]
    assert {live.row: record.token_s(live.run_ticks) for live in lives if live.row in moving} == {
        row: [0, 1] for row in moving
    }


def test_decodes_stand_by_key_and_of_equals_by_row():
    level = PriorityLevel(0)
    own, shared = (
        DecodeBatch(level, None, SIZE),
        DecodeBatch(level, Rank((2.0,), group="all"), SIZE),
    )
    for row, key in ((4, (3.0,)), (1, (1.0,)), (3, (2.0,))):
        live = state_of(row, 10)
        live.rank = Rank(key)
        own.join(live)
    shared.join(state_of(2, 10))
    assert [live.row for live in level.decodes_in_order()] == [1, 2, 3, 4]
