"""End of child processes: SIGTERM, then SIGKILL after a time limit."""

import logging
import subprocess
import time
from collections.abc import Sequence
from typing import Any

_log = logging.getLogger(__name__)


def end_processes(processes: Sequence[subprocess.Popen[Any]], timeout_s: float) -> None:
    """Send SIGTERM to running processes, and SIGKILL to each that outlasts `timeout_s`."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    until_s = time.monotonic() + timeout_s
    for process in processes:
        try:
            process.wait(max(until_s - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            _log.error("process %d did not end in time and is killed", process.pid)
            process.kill()
            process.wait()
