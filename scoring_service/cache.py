"""Exact results by prompt, and one computation for callers who ask the same at the same moment.

It stands in front of admission: a known answer is given however busy the model is.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import NamedTuple

Key = tuple[str, bytes]
"""Revision and digest of a prompt."""


class RawScore(NamedTuple):
    """What the model says of a prompt."""

    score: float
    prompt_tokens: int
    truncated: bool


class Flight:
    """One computation that several callers may wait for."""

    __slots__ = ("_landed", "key", "result")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.result: RawScore | None = None
        self._landed: threading.Event | None = None

    def join(self) -> None:
        """Announce that someone will wait. Called with the cache's lock held."""
        if self._landed is None:
            self._landed = threading.Event()

    def land(self) -> None:
        """Let those who joined go on. Called with the cache's lock held."""
        if self._landed is not None:
            self._landed.set()

    def wait(self, timeout_s: float) -> RawScore | None:
        """The result; None if there is none in time, or its computation failed."""
        assert self._landed is not None
        self._landed.wait(timeout_s)
        return self.result


class ScoreCache:
    """The most recently used results, at most `max_entries`. Threads may share it."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[Key, RawScore] = OrderedDict()
        self._flights: dict[Key, Flight] = {}
        self._lock = threading.Lock()
        self.num_hits = 0
        self.num_joins = 0

    @staticmethod
    def key(revision: str, prompt: str) -> Key:
        """Equal for equal prompts of one revision only."""
        return revision, hashlib.blake2b(prompt.encode(), digest_size=16).digest()

    def begin(self, key: Key) -> RawScore | tuple[Flight, bool]:
        """The result, or the flight that will bring it, and whether the caller must fly it.

        Who must fly must also `end` it, whatever happens.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                self.num_hits += 1
                return entry
            flight = self._flights.get(key)
            if flight is not None:
                flight.join()
                self.num_joins += 1
                return flight, False
            self._flights[key] = flight = Flight(key)
            return flight, True

    def end(self, flight: Flight, result: RawScore | None) -> None:
        """Publish a result; None: it failed, and those who wait must try for themselves."""
        with self._lock:
            del self._flights[flight.key]
            flight.result = result
            flight.land()
            if result is None or self._max_entries == 0:
                return
            self._entries[flight.key] = result
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
