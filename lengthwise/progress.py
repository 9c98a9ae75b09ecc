"""Progress on stderr: a line that rewrites itself on a terminal, else a line at every tenth."""

import sys
import time
from collections.abc import Callable
from typing import Final, Self

_BAR: Final = 20
_EVERY_S: Final = 0.2
"""Shortest readable time between two lines."""
_QUIET_S: Final = 5.0
"""Time without any line outside a terminal, so that short work prints nothing."""


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Progress:
    """Share of the work that is done: `with Progress(10) as progress: progress.step("fcfs")`.

    Without `is_partial_shown`, requests of the present run do not move the bar.
    """

    def __init__(
        self,
        total: int = 1,
        *,
        is_partial_shown: bool = True,
        log: Callable[[str], object] = _print,
    ) -> None:
        """Start the clock; `log` takes the lines where stderr is no terminal."""
        self.total, self.is_partial_shown, self.log = total, is_partial_shown, log
        self.done = self.tenths = 0
        self.what = ""
        self.start_s = self.next_look_s = time.monotonic()
        self.is_terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the line on a terminal."""
        if self.is_terminal:
            print(file=sys.stderr)

    def begin(self, what: str) -> None:
        """Name the run that `look` shows."""
        self.what = what

    def step(self, what: str) -> None:
        """Count one more run as done; `what` names it."""
        self.done += 1
        self.reach(self.done / self.total, f"{self.done}/{self.total}  {what}")

    def look(self, now_s: float, num_done: int, num_requests: int) -> None:
        """Show the virtual time of the present run; cheap enough for each of its steps."""
        if time.monotonic() >= self.next_look_s:
            self.next_look_s = time.monotonic() + _EVERY_S
            partial = num_done / num_requests if self.is_partial_shown else 0
            self.reach(
                (self.done + partial) / self.total,
                f"{self.done}/{self.total}  {self.what}: virtual time {now_s:,.0f} s, "
                f"{num_done:,}/{num_requests:,} requests",
            )

    def reach(self, share: float, text: str) -> None:
        """Show that this share of the work is done, with a text about it."""
        taken_s, tenths = time.monotonic() - self.start_s, int(share * 10 + 1e-9)
        if self.is_terminal:
            line = f"{'#' * int(share * _BAR):-<{_BAR}} {taken_s:.0f} s  {text}"
            print(f"\r{line[:99]:<99}", end="", file=sys.stderr, flush=True)
        elif tenths > self.tenths:
            self.tenths = tenths
            if taken_s >= _QUIET_S:
                self.log(f"{tenths * 10}% after {taken_s:.0f} s  {text}")
