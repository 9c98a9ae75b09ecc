"""CPU time and memory of other processes, and free ports."""

import os
import time
from pathlib import Path


def cpu_s(pid: int) -> float:
    """CPU time of a process, all threads, user and system, seconds. Linux."""
    # The clock id of another process, as clock_getcpuclockid(3) computes it.
    return time.clock_gettime((~pid << 3) | 2)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
