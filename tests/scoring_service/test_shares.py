"""Turns and places are shared between callers, and within a caller between its clients."""

import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from scoring_service.shares import NOBODY, Client, FairQueue

A, B, C = Client("a"), Client("b"), Client("c")


def filled(*clients, cost=1.0, num=100):
    queue = FairQueue()
    for client in clients:
        for due in range(num):
            queue.push(client, client, cost, due)
    return queue


def served(queue, turns):
    """Cost that each client receives in so many turns."""
    got = Counter()
    for entry in (queue.pop() for _ in range(turns)):
        got[entry.item] += entry.cost
    return got


def test_callers_share_by_cost_and_not_by_number_or_names():
    queue = filled(*(Client("a", str(n)) for n in range(9)), cost=4.0)
    for due in range(100):
        queue.push(B, B, 1.0, due)
    got = served(queue, 100)
    assert got[B] == got.total() - got[B] == 80
    assert {got[Client("a", str(n))] for n in range(9)} <= {8.0, 12.0}


def test_who_comes_back_has_neither_credit_nor_debt():
    queue = filled(A)
    served(queue, 50)
    for due in range(20):
        queue.push(B, B, 1.0, due)
    assert served(queue, 20) == {A: 10, B: 10}
    served(queue, 50)
    assert queue.pop() is None
    again = [queue.push(client, client, 1.0) for client in (A, B, A, B)]
    assert served(queue, 2) == {A: 1, B: 1}
    for entry in again:
        if entry.waits:
            queue.leave(entry)
    assert not queue.all.members


def test_in_a_client_the_urgent_go_first_and_what_left_does_not():
    queue = FairQueue()
    entries = [queue.push(NOBODY, due, 1.0, due) for due in (3, 1, 2, 1)]
    queue.leave(entries[3])
    assert [queue.pop().item for _ in range(3)] == [1, 2, 3]
    assert queue.pop() is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(1, 5))))
def test_the_cost_ahead_is_that_of_all_that_is_served_before(pushed):
    queue = FairQueue()
    for number, (caller, name, cost) in enumerate(pushed):
        queue.push(Client(caller, name), None, cost, number)
        if number % 3 == 2:
            queue.pop()
    new = Client("a", "x")
    ahead, last, before = queue.ahead(new, 1e9), object(), 0.0
    queue.push(new, last, 1.0, 1e9)
    while (entry := queue.pop()).item is not last:
        before += entry.cost
    assert abs(ahead - before) <= 5 * 6


@pytest.mark.parametrize("size", [None, 1.0])
def test_clients_share_a_full_queue_and_the_first_get_the_rest(size):
    queue = filled(A)
    assert queue.fits(A, 101, size)
    assert not queue.fits(A, 100, size)
    for _ in range(50):
        assert queue.fits(B, 100, size)
        queue.push(B, B, 1.0)
    assert not queue.fits(B, 100, size)
    assert queue.fits(C, 100, size)
    assert not queue.fits(B._replace(name="another"), 100, size)


def test_endless_names_and_items_that_leave_take_no_room():
    queue, rng = FairQueue(), random.Random(0)
    for number in range(5000):
        queue.push(Client("a", str(number)), None, rng.random())
        queue.leave(queue.enter(B, None))
        if number > 10:
            queue.pop()
    assert len(queue.all.members["a"].members) < 1100
    while queue.pop():
        pass
    assert not queue.all.members
