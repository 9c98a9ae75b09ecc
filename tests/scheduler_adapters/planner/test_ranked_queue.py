"""The queue in rank order, against a list that is sorted anew after each operation."""

import gc
import weakref
from math import inf

import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.planner.ranked_queue import RankedQueue
from scheduler_adapters.views import Rank
from tests.scheduler_adapters.planner.waiting import Waiting, number_of, waiting

ranks = st.builds(
    Rank,
    key=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    lane=st.integers(0, 1),
    valid_until_s=st.sampled_from([1.0, 2.0, 3.0, inf]),
    valid_until_started=st.sampled_from([1.0, 2.0, 4.5, inf]),
    then=st.just(Rank()),
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ranks),
        st.tuples(st.just("pop"), st.none()),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("expire"), st.sampled_from([0.5, 1.0, 2.5, 9.0])),
    ),
    max_size=40,
)


def turns_of(model: dict[int, Rank]) -> list[int]:
    """Return the receive numbers in the order in which the requests start, as ranks end."""
    left, turns = dict(model), list[int]()
    while left:
        lane = min(rank.lane for rank in left.values())
        keys = {
            n: rank.key if rank.valid_until_started > len(turns) else rank.then.key
            for n, rank in left.items()
            if rank.lane == lane
        }
        turns.append(min(keys, key=lambda n: (keys[n], n)))
        del left[turns[-1]]
    return turns


@given(operations=operations)
def test_the_queue_is_always_what_sorting_would_give(operations):
    queue: RankedQueue[Waiting] = RankedQueue()
    model: dict[int, Rank] = {}
    for number, (kind, value) in enumerate(operations):
        if kind == "add":
            queue.add(waiting(number, value))
            model[number] = value
        elif kind == "pop" and model:
            first = turns_of(model)[0]
            assert number_of(queue.first()) == number_of(queue.pop_first()) == first
            del model[first]
        elif kind == "remove":
            found = queue.remove(value)
            assert (found is not None) == (model.pop(value, None) is not None)
            assert found is None or number_of(found) == value
        elif kind == "expire":
            due = {n for n, rank in model.items() if rank.valid_until_s <= value}
            queue.num_started = 0
            assert {number_of(item) for item in queue.pop_expired(value)} == due
            for n in due:
                del model[n]
        by_rank = sorted(model, key=lambda n: (model[n].lane, model[n].key, n))
        assert [number_of(item) for item in queue] == by_rank
        queue.num_started = 0
        turns = turns_of(model)
        assert [number_of(item) for item in queue.in_order()] == turns
        queue.unplan()
        assert [number_of(item) for item in queue.first_few(3)] == turns[:3]
        assert len(queue) == len(model)
        assert all(n in queue for n in model)


def test_an_empty_queue_says_so():
    queue: RankedQueue[Waiting] = RankedQueue()
    with pytest.raises(IndexError):
        queue.first()
    with pytest.raises(IndexError):
        queue.pop_first()


def test_timers_keep_no_removed_item_and_do_not_pile_up():
    queue: RankedQueue[Waiting] = RankedQueue()
    for number in range(10_000):
        last = waiting(number, Rank(valid_until_s=1e9 + number))
        gone = weakref.ref(last)
        queue.add(last)
        queue.remove(number)
    del last
    gc.collect()
    assert gone() is None
    assert len(queue._timers._heap) <= 65
