"""Asking for short time slices changes nothing else about a thread, and never fails."""

from __future__ import annotations

import os
import platform
import threading

import pytest

from scoring_service.server import time_slices
from scoring_service.server.time_slices import ask_for_short_slices


def scheduling_of_a_thread_that(prepare):
    """Policy and niceness of a new thread after `prepare`: the test's own stays as it was."""
    seen = []

    def ask():
        prepare()
        ask_for_short_slices()
        seen.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return seen[0]


@pytest.mark.parametrize("more", [0, 1])
def test_policy_and_niceness_stay_as_they_were(more):
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    found = scheduling_of_a_thread_that(lambda: os.nice(more))
    assert found == (os.SCHED_OTHER, min(nice + more, 19))


def test_an_unknown_machine_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    monkeypatch.setattr(time_slices.ctypes, "CDLL", None)
    ask_for_short_slices()
