"""The pool of the server's threads."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from scoring_service.server.threads import LifoPool


def outcomes(pool, *functions):
    """Run functions on the pool; their results in the order in which they ended."""
    results = SimpleQueue()
    for function in functions:
        pool.submit(lambda function=function: results.put(function()))
    return [results.get(timeout=60) for _ in functions]


def test_work_one_after_the_other_stays_on_one_thread():
    pool = LifoPool(8, "t")
    names = {outcomes(pool, lambda: threading.current_thread().name)[0] for _ in range(50)}
    # A thread has done its work just before it is idle again, so a second may be started.
    assert len(names) <= 2
    pool.shutdown()


def test_work_beyond_the_threads_queues_and_all_of_it_is_done():
    pool = LifoPool(3, "t")
    barrier = threading.Barrier(3)
    assert sorted(outcomes(pool, *[lambda: barrier.wait(60)] * 3)) == [0, 1, 2]
    squares = outcomes(pool, *[lambda n=n: n * n for n in range(200)])
    assert sorted(squares) == [n * n for n in range(200)]
    pool.shutdown()


def test_a_failure_is_logged_and_the_thread_lives_on(caplog):
    pool = LifoPool(1, "t")
    ended = threading.Event()
    pool.submit(lambda: 1 / 0).add_done_callback(lambda work: ended.set())
    assert ended.wait(60)
    assert "ZeroDivisionError" in caplog.text
    assert outcomes(pool, lambda: 1) == [1]
    pool.shutdown()


@pytest.mark.parametrize("late", [False, True])
def test_who_wants_to_know_is_told_once_that_work_is_done(late):
    pool = LifoPool(1, "t")
    begin, told = threading.Event(), SimpleQueue()
    work = pool.submit(begin.wait, 60)
    if late:
        begin.set()
        outcomes(pool, lambda: None)
    work.add_done_callback(told.put)
    begin.set()
    assert told.get(timeout=60) is work
    outcomes(pool, lambda: None)
    assert told.empty()
    pool.shutdown()


def test_a_pool_that_is_shut_down_takes_no_work_and_its_threads_end():
    before = threading.active_count()
    pool = LifoPool(4, "t")
    outcomes(pool, lambda: None)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(lambda: None)
    for thread in threading.enumerate():
        if thread.name.startswith("t-"):
            thread.join(60)
    assert threading.active_count() <= before
