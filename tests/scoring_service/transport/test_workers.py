"""A bounded number of tasks, which hold a bounded number of bytes."""

from __future__ import annotations

import threading

import pytest

from scoring_service.transport.workers import Workers
from tests.scoring_service.waiting import wait_until


@pytest.fixture
def workers():
    workers = Workers(2, max_tasks=3, max_bytes=100)
    yield workers
    workers.close()


def test_tasks_beyond_the_limit_are_not_taken_until_others_end(workers):
    gate = threading.Event()
    assert [workers.submit(1, lambda: gate.wait(60)) for _ in range(4)] == [True] * 3 + [False]
    assert workers.is_full
    gate.set()
    wait_until(lambda: not workers.is_full)
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
    wait_until(lambda: not workers.is_full)
    assert "as told" in caplog.text
