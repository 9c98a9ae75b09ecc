"""Progress on stderr: a line that rewrites itself on a terminal, else a line every tenth."""

import sys
import time
from typing import Final, Self

from lengthwise.command_line import Tenths

_BAR: Final = 20
_EVERY_S: Final = 0.2
"""Least time between two lines; what changes faster cannot be read."""


class Progress:
    """`with Progress(10) as progress: progress.step("fcfs")`.

    The line shows the share of runs that are done and, where `look` is called during a run, its
    virtual time and its requests. A search makes many runs for one step of `total`, and their
    number is unknown: without `is_partial_shown` the bar waits for the step.
    """

    def __init__(self, total: int, *, is_partial_shown: bool = True) -> None:
        self.total = total
        self.is_partial_shown = is_partial_shown
        self.done = 0
        self.what = ""
        self.start_s = time.monotonic()
        self.next_look_s = self.start_s
        self.is_terminal = sys.stderr.isatty()
        self._tenths = Tenths(lambda line: print(line, file=sys.stderr, flush=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_terminal:
            print(file=sys.stderr)

    def begin(self, what: str) -> None:
        """Name the run that `look` will tell of."""
        self.what = what

    def step(self, what: str) -> None:
        """Count one more run as done; `what` names it."""
        self.done += 1
        self._show(self.done / self.total, what)

    def look(self, now_s: float, num_done: int, num_requests: int) -> None:
        """Show the virtual time of the run under way; cheap enough for every step of it."""
        if time.monotonic() >= self.next_look_s:
            self.next_look_s = time.monotonic() + _EVERY_S
            partial = num_done / num_requests if self.is_partial_shown else 0
            self._show(
                (self.done + partial) / self.total,
                f"{self.what}: virtual time {now_s:,.0f} s, {num_done:,}/{num_requests:,} requests",
            )

    def _show(self, share: float, what: str) -> None:
        if not self.is_terminal:
            self._tenths.reach(share, f"{self.done}/{self.total}  {what}")
        else:
            filled = int(share * _BAR)
            taken_s = time.monotonic() - self.start_s
            line = f"{'#' * filled:-<{_BAR}} {self.done}/{self.total} {taken_s:.0f} s  {what}"
            print(f"\r{line[:99]:<99}", end="", file=sys.stderr, flush=True)
