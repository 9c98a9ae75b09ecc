"""Waits for a state that another thread or process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object]) -> None:
    """Return when `condition` holds; fail if it does not within a minute."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
