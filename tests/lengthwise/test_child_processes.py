"""Processes end within a time limit, by force if need be."""

import signal
import subprocess
import sys

import pytest

from lengthwise.child_processes import end_processes, started
from lengthwise.errors import ServiceUnavailable

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True)"


def test_processes_end_by_sigterm_and_stubborn_ones_by_sigkill(caplog):
    codes = ("print(flush=True)", "print(flush=True)", STUBBORN)
    ended, running, stubborn = (
        subprocess.Popen(
            [sys.executable, "-c", f"{code}; import time; time.sleep({seconds})"],
            stdout=subprocess.PIPE,
        )
        for code, seconds in zip(codes, (0, 60, 60), strict=True)
    )
    for process in (ended, running, stubborn):
        process.stdout.readline()
        process.stdout.close()
    ended.wait(60)
    end_processes([ended, running, stubborn], 0.2)
    codes = [process.returncode for process in (ended, running, stubborn)]
    assert codes[0] == 0
    assert codes[1] in (-signal.SIGTERM, -signal.SIGKILL)
    assert codes[2] == -signal.SIGKILL
    assert f"process {stubborn.pid} did not end in time" in caplog.text


def test_a_started_process_is_ready_and_ends_with_the_block():
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
