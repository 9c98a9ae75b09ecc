"""Who waits longest goes first, and nobody waits for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from scoring_service.transport.blocked_calls import Waiting


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def given_up():
    return []


@pytest.fixture
def waiting(clock, given_up):
    return Waiting(given_up.append, timeout_s=5.0, max_waiting=3, clock=clock)


def test_whoever_waits_too_long_is_given_up_once(waiting, clock, given_up):
    for name in "abc":
        waiting.enter(name)
        clock.now_s += 1
    assert waiting.leave("b")
    clock.now_s = 6.5
    waiting.sweep()
    waiting.sweep()
    assert given_up == ["a"]
    assert not waiting.leave("a")
    clock.now_s = 7.0
    waiting.sweep()
    assert given_up == ["a", "c"]
    assert len(waiting) == 0


def test_who_enters_again_begins_anew(waiting, clock, given_up):
    waiting.enter("a")
    clock.now_s = 4.0
    waiting.enter("a")
    clock.now_s = 8.0
    waiting.sweep()
    assert given_up == []
    assert len(waiting) == 1


def test_of_too_many_the_oldest_gives_way(waiting, given_up):
    for name in "abcde":
        waiting.enter(name)
    assert given_up == ["a", "b"]


def test_only_who_waits_long_enough_makes_room(waiting, clock, given_up):
    waiting.give_way(0.0)
    waiting.enter("a")
    clock.now_s = 1.0
    waiting.enter("b")
    waiting.give_way(2.0)
    assert given_up == []
    waiting.give_way(1.0)
    assert given_up == ["a"]


def test_all_are_given_up_at_the_end(waiting, given_up):
    for name in "abc":
        waiting.enter(name)
    waiting.clear()
    assert given_up == ["a", "b", "c"]


def test_one_that_cannot_be_given_up_keeps_nobody_else(clock, caplog):
    def fail(waiter):
        raise ValueError(waiter)

    waiting = Waiting(fail, timeout_s=1.0, max_waiting=9, clock=clock)
    waiting.enter("a")
    waiting.enter("b")
    clock.now_s = 2.0
    waiting.sweep()
    assert len(waiting) == 0
    assert caplog.text.count("could not be given up") == 2


def test_each_is_given_up_or_leaves_and_never_both():
    num_given_up = threading.Semaphore(0)
    waiting = Waiting(lambda _: num_given_up.release(), timeout_s=0.0, max_waiting=10)

    def pass_through(number):
        waiting.enter(number)
        waiting.sweep()
        return waiting.leave(number)

    with ThreadPoolExecutor(8) as pool:
        left = sum(pool.map(pass_through, range(2000)))
    dropped = 0
    while num_given_up.acquire(blocking=False):
        dropped += 1
    assert left + dropped == 2000
