"""A process ends when it is told to, and if something in it hangs."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from scoring_service.server.worker import use_short_slices

PYTHON = [sys.executable, "-c"]


def test_a_signal_at_any_moment_of_a_wait_ends_it():
    code = (
        "import signal; from scoring_service.server.worker import end_request\n"
        "for number in range(2000):\n"
        "    with end_request([signal.SIGALRM]) as wait:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0.0002)\n"
        "        while not wait(0.00002 if number % 2 else None): pass"
    )
    subprocess.run([*PYTHON, code], timeout=60, check=True)


def test_a_process_ends_though_something_in_it_hangs():
    code = (
        "import threading; from scoring_service.server.worker import end_for_sure;"
        "end_for_sure(0.05); threading.Thread(target=threading.Event().wait).start()"
    )
    assert subprocess.run([*PYTHON, code], capture_output=True, timeout=60).returncode == 1


def test_large_blocks_are_given_back_when_they_are_free():
    code = (
        "from tests.scoring_service.waiting import rss_bytes; import os, sys;"
        "from scoring_service.server.worker import return_free_memory;"
        "return_free_memory();"
        "before = rss_bytes(os.getpid());"
        # Sizes that glibc, left alone, would keep in its heap behind the small one after them.
        "blocks = [[bytearray(n), bytes(1000)] for n in range(2_000_000, 20_000_000, 1_000_000)];"
        "keep = [block[1] for block in blocks]; del blocks;"
        "blocks = [[bytearray(900_000), bytes(1000)] for _ in range(50)];"
        "keep += [block[1] for block in blocks]; del blocks;"
        "print(rss_bytes(os.getpid()) - before)"
    )
    run = subprocess.run([*PYTHON, code], capture_output=True, text=True, timeout=60)
    assert int(run.stdout) < 10_000_000, run.stderr


@pytest.mark.parametrize("more", [0, 1])
def test_policy_and_niceness_stay_as_they_were(more):
    def prepare():
        os.nice(more)
        use_short_slices()
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)

    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1) as pool:  # The test's own thread stays as it was.
        assert pool.submit(prepare).result() == (os.SCHED_OTHER, min(nice + more, 19))
