"""Other processes: start, CPU time, memory, stop."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lengthwise.errors import ServiceUnavailable


def cpu_s(pid: int) -> float:
    """CPU time of a process, all threads, user and system, seconds. Linux."""
    # The clock id of another process, as clock_getcpuclockid(3) computes it.
    return time.clock_gettime((~pid << 3) | 2)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    command: Sequence[str], *, ready: str, timeout_s: float = 60.0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the first line of its stdout that contains `ready`; terminated at the end.

    Raises:
        ServiceUnavailable: it ended, or did not say so in time.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process, _wait_for_line(process, ready, timeout_s)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _wait_for_line(process: subprocess.Popen[str], ready: str, timeout_s: float) -> str:
    assert process.stdout is not None
    deadline = threading.Timer(timeout_s, process.kill)
    deadline.start()
    try:
        for line in process.stdout:
            if ready in line:
                return line.strip()
    finally:
        deadline.cancel()
    raise ServiceUnavailable(
        f"{' '.join(process.args)} did not become ready in {timeout_s:.0f} s; run it by hand"  # type: ignore[arg-type]
    )
