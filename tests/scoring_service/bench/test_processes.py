"""CPU time and memory of processes, and free ports."""

from __future__ import annotations

import os
import time

from scoring_service.bench.processes import cpu_s, rss_bytes


def test_cpu_time_of_a_process_is_its_own():
    before_s = time.process_time()
    while time.process_time() < before_s + 0.05:
        pass
    assert before_s + 0.05 <= cpu_s(os.getpid()) <= time.process_time()
    assert rss_bytes(os.getpid()) > 10e6
