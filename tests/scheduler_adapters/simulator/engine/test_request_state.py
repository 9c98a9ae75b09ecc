"""Decode batches: state by one counter equals counting each member."""

import pytest
from hypothesis import given, strategies as st

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
