"""Child processes: a free port, start until ready, end by SIGTERM and after a limit SIGKILL."""

import logging
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lengthwise.errors import ServiceUnavailable

_log = logging.getLogger(__name__)


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    command: Sequence[str],
    *,
    ready: str,
    timeout_s: float = 60.0,
    stderr: int | None = subprocess.DEVNULL,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process; yield it and the first line of its stdout that contains `ready`.

    The process ends with the block. Raises ServiceUnavailable without that line in `timeout_s`.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        deadline = threading.Timer(timeout_s, process.kill)
        deadline.start()
        try:
            line = next((line for line in process.stdout or () if ready in line), None)
            deadline.cancel()
            if line is None:
                raise ServiceUnavailable(
                    f"{' '.join(command)} did not become ready in {timeout_s:.0f} s; run it by hand"
                )
            yield process, line.strip()
        finally:
            deadline.cancel()
            end_processes([process], 15.0)


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
