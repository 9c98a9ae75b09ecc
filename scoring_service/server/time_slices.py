"""Short time slices, so that a woken thread does not wait for the end of a model run.

Linux lets a running thread finish its slice, by default some milliseconds, before a woken thread
takes its core. With every core busy in the model, a call that passes through five threads waits
five times. From Linux 6.12 on a thread may shorten its slices, without any privilege.
"""

import ctypes
import os
import platform
import struct
from typing import Final

SLICE_S: Final = 150e-6
_SYSCALL: Final = {"x86_64": 314, "aarch64": 274}
"""Number of sched_setattr(2), which neither Python nor the C library wraps."""


def ask_for_short_slices() -> None:
    """Shorten the slices of this thread and of those it starts; no effect on other systems."""
    number = _SYSCALL.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    # size, policy, flags, nice, priority, runtime, deadline, period.
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, int(SLICE_S * 1e9), 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)
