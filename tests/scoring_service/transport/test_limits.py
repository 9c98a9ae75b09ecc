"""The oldest blocked call is cancelled first; tasks are bounded in number and bytes."""

import threading

import pytest

from scoring_service.shares import NOBODY
from scoring_service.transport.limits import BlockedCalls, Workers
from tests.scoring_service.waiting import Clock, wait_until


@pytest.fixture
def made():
    clock, cancelled = Clock(), []
    blocked = BlockedCalls(cancelled.append, timeout_s=5.0, max_calls=3, clock=clock)
    return blocked, clock, cancelled


def test_a_call_beyond_the_time_limit_is_cancelled_once(made):
    blocked, clock, cancelled = made
    for name in "abc":
        blocked.add(name)
        clock.now_s += 1
    assert blocked.remove("b")
    clock.now_s = 6.5
    blocked.cancel_overdue()
    blocked.cancel_overdue()
    assert cancelled == ["a"]
    assert not blocked.remove("a")
    clock.now_s = 7.0
    blocked.cancel_overdue()
    assert cancelled == ["a", "c"]
    assert len(blocked) == 0
    for now_s in (7.0, 11.0):  # the second time restarts the limit
        clock.now_s = now_s
        blocked.add("d")
    clock.now_s = 15.0
    blocked.cancel_overdue()
    assert (cancelled, len(blocked)) == (["a", "c"], 1)


def test_a_call_that_cannot_be_cancelled_keeps_no_other(caplog):
    clock = Clock()

    def fail(call):
        raise ValueError(call)

    blocked = BlockedCalls(fail, timeout_s=1.0, max_calls=9, clock=clock)
    blocked.add("a")
    blocked.add("b")
    clock.now_s = 2.0
    blocked.cancel_overdue()
    assert len(blocked) == 0
    assert caplog.text.count("could not be cancelled") == 2


@pytest.fixture
def workers():
    workers = Workers(2, max_tasks=3, max_bytes=100)
    yield workers
    workers.close()


def test_tasks_beyond_the_limit_are_not_taken_until_others_end(workers):
    gate = threading.Event()
    assert [workers.submit(1, lambda: gate.wait(60)) for _ in range(4)] == [True] * 3 + [False]
    assert not workers.has_room(NOBODY)
    gate.set()
    wait_until(lambda: workers.has_room(NOBODY))
    assert workers.submit(1, gate.wait)


def test_the_bytes_of_taken_tasks_are_bounded(workers):
    gate = threading.Event()
    assert workers.submit(100, lambda: gate.wait(60))
    assert not workers.submit(1, gate.wait)
    gate.set()
    wait_until(lambda: workers.submit(1, gate.wait))


def test_a_task_that_fails_is_logged_and_gives_its_place_back(workers, caplog):
    def fail():
        raise ValueError("as told")

    for _ in range(10):
        wait_until(lambda: workers.submit(100, fail))
    wait_until(lambda: workers.has_room(NOBODY))
    assert "as told" in caplog.text
