"""Exact results by prompt, and one computation for equal prompts at the same moment.

The cache stands in front of admission: a known result is returned under any load.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from lengthwise.calibration import LengthEstimate
from lengthwise.errors import ScoringError

Key = tuple[str, bytes]
"""Revision and digest of a prompt."""


class Scored(NamedTuple):
    """Score of one prompt."""

    score: float
    prompt_tokens: int
    truncated: bool
    length: LengthEstimate | None = None
    """Estimate for a target model, which is not cached."""


Result: TypeAlias = Scored | ScoringError


@dataclass(slots=True, eq=False)
class Flight:
    """One computation, shared by the calls that need its result."""

    key: Key
    result: Result | None = None
    """None before the end."""
    waiting: list[Callable[[Flight], None]] = field(default_factory=list)
    """Callbacks for the end."""


class ScoreCache:
    """The most recently used results, at most `max_entries`. Threads may share it."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[Key, Scored] = OrderedDict()
        self._flights: dict[Key, Flight] = {}
        self._lock = threading.Lock()
        self.num_hits = 0
        self.num_joins = 0

    @staticmethod
    def key(revision: str, prompt: str) -> Key:
        """Return a key that is equal for equal prompts of one revision only."""
        return revision, hashlib.blake2b(prompt.encode(), digest_size=16).digest()

    def begin(self, key: Key, on_landed: Callable[[Flight], None]) -> Scored | Flight | None:
        """Return the result, or a computation that the caller must carry out and `end`.

        None: another caller computes it, and calls `on_landed` at the end.
        """
        with self._lock:
            if (entry := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
                self.num_hits += 1
                return entry
            if (flight := self._flights.get(key)) is not None:
                flight.waiting.append(on_landed)
                self.num_joins += 1
                return None
            self._flights[key] = flight = Flight(key)
            return flight

    def end(self, flight: Flight, result: Result) -> None:
        """Publish a result; an error is not kept, and the other callers must then compute it."""
        with self._lock:
            del self._flights[flight.key]
            flight.result = result
            if isinstance(result, Scored):
                self._entries[flight.key] = result
                if len(self._entries) > self._max_entries:
                    self._entries.popitem(last=False)
        for on_landed in flight.waiting:
            on_landed(flight)

    def __len__(self) -> int:
        return len(self._entries)
