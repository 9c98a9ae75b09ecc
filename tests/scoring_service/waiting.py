"""Waits for a state that another thread or process brings about, and calls that never speak."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest


def wait_until(condition: Callable[[], object]) -> None:
    """Return when `condition` holds; fail if it does not within a minute."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    """Return the status with which a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code()


def rss_bytes(pid: int) -> int:
    """Resident memory of a process. Linux."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def no_messages(end: threading.Event) -> Iterator[bytes]:
    """Yield nothing until `end` is set: the messages of a call that is silent."""
    end.wait(60)
    yield from ()


class Clock:
    """Stands still until it is moved."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
