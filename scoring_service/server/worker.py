"""A server process until its end: signs of life for its supervisor, and an end in time."""

import ctypes
import logging
import os
import platform
import signal
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

BEAT: Final = "alive"
"""Written to standard output under a supervisor, once in `BEAT_S`."""
BEAT_S: Final = 1.0
END_S: Final = 1.0
"""Longest time of a process's end beyond its notice and grace."""
_PR_SET_PDEATHSIG: Final = 1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 262_144
_log = logging.getLogger(__name__)


class EndRequest:
    """A request to end, which a signal handler may make on the thread that waits for it."""

    # With `threading.Event`, a signal at the end of a wait finds the event's lock taken by its own
    # thread, and both the handler and the process hang.
    def __init__(self) -> None:
        self._made = SimpleQueue[None]()  # its put is reentrant
        self._is_made = False

    def make(self, *_: object) -> None:
        """End all present and later waits; also as a signal handler."""
        self._is_made = True
        self._made.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once the request is made, False after `timeout_s`. For one thread."""
        if not self._is_made:
            with suppress(Empty):
                self._made.get(timeout=timeout_s)
        return self._is_made


def end_with_parent(parent_pid: int) -> None:
    """Let the parent's end, of any kind, send SIGTERM; only on Linux, elsewhere see `wait`."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:  # It ended before the call above.
        os.kill(os.getpid(), signal.SIGTERM)


def give_memory_back() -> None:
    """Make the C library return large blocks, e.g. of messages, to the system on release."""
    # glibc raises the size of such blocks with each of them, up to 32 MiB.
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def wait(end: EndRequest, parent_pid: int | None) -> None:
    """Wait until `end` is made, or until the parent, if there is one, has ended."""
    if parent_pid is None:
        end.wait()
        return
    while not end.wait(BEAT_S):
        try:
            print(BEAT, flush=True)
        except OSError:
            break
        if os.getppid() != parent_pid:
            break


def end_for_sure(after_s: float) -> None:
    """End this process after so many seconds, whatever still runs in it."""

    def end() -> None:
        time.sleep(after_s)
        _log.error("something did not end in time; the process ends without it")
        os._exit(1)

    threading.Thread(target=end, name="end", daemon=True).start()
