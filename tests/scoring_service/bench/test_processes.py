"""CPU time, memory and start of other processes."""

from __future__ import annotations

import os
import socket
import sys
import time

import pytest

from lengthwise.errors import ServiceUnavailable
from scoring_service.bench.processes import cpu_s, free_port, rss_bytes, started


def test_cpu_time_of_a_process_is_its_own():
    before_s = time.process_time()
    while time.process_time() < before_s + 0.05:
        pass
    assert before_s + 0.05 <= cpu_s(os.getpid()) <= time.process_time()
    assert rss_bytes(os.getpid()) > 10e6


def test_a_free_port_can_be_bound():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))


def test_a_started_process_has_said_that_it_is_ready_and_ends_with_the_block():
    program = "import time; print('warming'); print('ready 7', flush=True); time.sleep(600)"
    with started([sys.executable, "-c", program], ready="ready") as (process, line):
        assert line == "ready 7"
        assert process.poll() is None
    assert process.poll() is not None


def test_a_process_that_ends_unready_is_an_error():
    with (
        pytest.raises(ServiceUnavailable, match="did not become ready"),
        started([sys.executable, "-c", "print('no')"], ready="ready"),
    ):
        pass
