"""A progress line on stderr, on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self


class Progress:
    """`with Progress(10) as progress: progress.step("fcfs")`; silent without a terminal."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.start_s = time.monotonic()
        self.is_shown = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_shown:
            print(file=sys.stderr)

    def step(self, what: str) -> None:
        """One more is done; `what` says which."""
        self.done += 1
        if self.is_shown:
            taken_s = time.monotonic() - self.start_s
            line = f"{self.done}/{self.total}  {what}  {taken_s:.0f} s"
            print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
