"""Set-up and end of a server process: time slices, memory, an end in time."""

import ctypes
import logging
import os
import platform
import resource
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

END_S: Final = 1.0
"""Longest time of a process's end beyond its notice and grace."""
SLICE_S: Final = 150e-6
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""Number of sched_setattr(2), which neither Python nor the C library wraps."""
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 262_144
_log = logging.getLogger(__name__)


Wait: TypeAlias = Callable[[float | None], bool]


@contextmanager
def end_request(signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT)) -> Iterator[Wait]:
    """Yield a wait for one of the signals, at most so many seconds; it returns whether one came."""
    # A lock's wait hangs where the signal lands just before it: Python's handler runs only once the
    # wait is over. A signal also writes a byte to the wakeup socket, which stays there unread.
    woken, wakeup = socket.socketpair()
    with woken, wakeup:
        wakeup.setblocking(False)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, lambda *_: None)
        yield lambda timeout_s: bool(select.select([woken], [], [], timeout_s)[0])
        signal.set_wakeup_fd(-1)


def use_short_slices() -> None:
    """Shorten the time slices of this thread and of the threads that it starts."""
    # A running thread finishes its slice, by default some milliseconds, before a woken thread takes
    # its core. With every core busy in the model, a call through five threads waits five times.
    # From Linux 6.12 on this needs no privilege.
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    # size, policy, flags, nice, priority, runtime, deadline, period.
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, int(SLICE_S * 1e9), 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def use_all_file_numbers() -> None:
    """Raise this process's limit on open files to what it may have: connections are files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def return_free_memory() -> None:
    """Make the C library return large blocks, e.g. of messages, to the system on release."""
    # glibc raises the size of such blocks with each of them, up to 32 MiB.
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def end_for_sure(after_s: float) -> None:
    """End this process after so many seconds, whatever still runs in it."""

    def end() -> None:
        time.sleep(after_s)
        _log.error("something did not end in time; the process ends without it")
        os._exit(1)

    threading.Thread(target=end, name="end", daemon=True).start()
