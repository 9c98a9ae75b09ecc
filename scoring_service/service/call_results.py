"""Results of a call: from the cache, from another call's computation, or computed for it.

Results are exact, and equal prompts at the same moment are computed once. The cache stands in front
of admission: a known result is returned under any load. Nothing blocks: few threads do.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from lengthwise.bundle import LengthEstimate
from lengthwise.errors import ScoringError
from scoring_service.ranker.model import RankerModel
from scoring_service.service.batching import Call, Job, MicroBatcher, too_late
from scoring_service.shares import Client
from scoring_service.tokenizing import TokenizedPrompt

_log = logging.getLogger(__name__)
Key = tuple[str, bytes]
"""Revision and digest of a prompt."""


class Scored(NamedTuple):
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


class ScoreCache:
    """The most recently used results, at most `max_entries`. Threads may share it."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[Key, Scored] = OrderedDict()
        self._flights: dict[Key, Flight] = {}
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """Hits and joins, by the names of their metrics."""

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
                self.counts["cache_hits"] += 1
                return entry
            if (flight := self._flights.get(key)) is not None:
                flight.waiting.append(on_landed)
                self.counts["cache_joins"] += 1
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


@dataclass(eq=False)
class CallResults:
    """Collects the results of one call's prompts."""

    _model: RankerModel
    _cache: ScoreCache
    _batcher: MicroBatcher
    _prompts: Mapping[Key, str]
    """Prompts by their keys in the cache."""
    _call: Call
    """Deadline of the call; cancelling it drops the computations for it."""
    _on_done: Callable[[CallResults], None]
    """Called once, when every prompt has its result; perhaps before `request` returns."""
    _owners: Mapping[Key, Client] = field(default_factory=dict)
    """Clients of prompts, if they are not all the call's own."""
    results: dict[Key, Result] = field(default_factory=dict)
    tokenize_s: float = 0.0
    jobs: list[Job] = field(default_factory=list)
    """Jobs of the prompts that were computed for this call."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def request(self, keys: Iterable[Key]) -> None:
        """Take the known results; join or start the computation of the others."""
        mine: list[Flight] = []
        for key in keys:
            found = self._cache.begin(key, self._landed)
            if isinstance(found, Scored):
                self._put(key, found)
            elif found is not None:
                mine.append(found)
        if mine:
            self._compute(mine)

    def _compute(self, flights: Sequence[Flight]) -> None:
        # It costs less than tokenizing.
        error: ScoringError | None = self._batcher.refuse_early(self._call)
        tokenized: Sequence[TokenizedPrompt] = ()
        if error is None:
            started_s = time.monotonic()
            try:
                tokenized = self._model.tokenizer.tokenize([self._prompts[f.key] for f in flights])
            except Exception:
                _log.exception("%d prompts could not be tokenized", len(flights))
                error = ScoringError("the service failed; its log says how")
            self.tokenize_s += time.monotonic() - started_s
        if error is not None:
            for flight in flights:
                self._end(flight, error)
            return
        jobs = [
            Job(
                self._model,
                prompt.ids,
                self._call,
                partial(self._computed, flight, prompt),
                self._owners.get(flight.key),
            )
            for flight, prompt in zip(flights, tokenized, strict=True)
        ]
        self.jobs += jobs
        self._batcher.submit(jobs, self._call)

    def _computed(self, flight: Flight, prompt: TokenizedPrompt, job: Job) -> None:
        result: Result | float = job.result
        if isinstance(result, float):
            result = Scored(result, len(prompt.ids), prompt.truncated)
        self._end(flight, result)

    def _end(self, flight: Flight, result: Result) -> None:
        self._cache.end(flight, result)
        self._put(flight.key, result)

    def _landed(self, flight: Flight) -> None:
        """Take the result of another call's computation; compute it here if that failed."""
        if isinstance(flight.result, Scored):
            self._put(flight.key, flight.result)
        elif self._call.cancelled or time.monotonic() >= self._call.deadline_s:
            self._put(flight.key, too_late())
        else:
            self.request([flight.key])

    def _put(self, key: Key, result: Result) -> None:
        with self._lock:
            self.results[key] = result
            is_done = len(self.results) == len(self._prompts)
        if is_done:
            self._on_done(self)
