"""The pool of the server's threads."""

from __future__ import annotations

import threading

import pytest

from scoring_service.threads import LifoPool


def test_work_one_after_the_other_stays_on_one_thread():
    pool = LifoPool(8, "t")
    names = {pool.submit(lambda: threading.current_thread().name).result(5) for _ in range(50)}
    # A worker sets the result just before it is idle again, so a second may be started.
    assert len(names) <= 2
    pool.shutdown()


def test_work_beyond_the_threads_queues_and_all_of_it_is_done():
    pool = LifoPool(3, "t")
    barrier = threading.Barrier(3)
    at_once = [pool.submit(barrier.wait, 5) for _ in range(3)]
    results = [pool.submit(lambda n=n: n * n) for n in range(200)]
    assert [future.result(5) for future in results] == [n * n for n in range(200)]
    assert sorted(future.result(5) for future in at_once) == [0, 1, 2]
    pool.shutdown()


def test_an_exception_reaches_the_caller_and_the_thread_lives_on():
    pool = LifoPool(1, "t")
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(5)
    assert pool.submit(lambda: 1).result(5) == 1
    pool.shutdown()


def test_a_pool_that_is_shut_down_takes_no_work_and_its_threads_end():
    before = threading.active_count()
    pool = LifoPool(4, "t")
    pool.submit(lambda: None).result(5)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(lambda: None)
    for thread in threading.enumerate():
        if thread.name.startswith("t-"):
            thread.join(5)
    assert threading.active_count() <= before
