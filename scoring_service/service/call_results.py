"""Results of one call: from the cache, from another call's computation, or computed for it.

Nothing here blocks, so that a few threads serve thousands of calls.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from lengthwise.errors import ScoringError
from scoring_service.ranker.model import RankerModel
from scoring_service.service.batching import Call, Job, MicroBatcher, too_late
from scoring_service.service.cache import Flight, Key, ScoreCache, Scored
from scoring_service.tokenizing import TokenizedPrompt

Result: TypeAlias = Scored | ScoringError
_log = logging.getLogger(__name__)


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
            elif found[1]:
                mine.append(found[0])
        if mine:
            self._compute(mine)

    def _compute(self, flights: Sequence[Flight]) -> None:
        error: ScoringError | None
        try:
            # It costs less than tokenizing.
            if (error := self._batcher.refuse_early(self._call)) is None:
                started_s = time.monotonic()
                tokenized = self._model.tokenizer.tokenize([self._prompts[f.key] for f in flights])
                self.tokenize_s += time.monotonic() - started_s
                jobs = [
                    Job(
                        self._model, prompt.ids, self._call, partial(self._computed, flight, prompt)
                    )
                    for flight, prompt in zip(flights, tokenized, strict=True)
                ]
        except Exception:
            _log.exception("%d prompts could not be tokenized", len(flights))
            error = ScoringError("the service failed; its log says how")
        if error is None:
            self.jobs += jobs
            self._batcher.submit(jobs, self._call)
            return
        for flight in flights:
            self._cache.end(flight, None)
            self._put(flight.key, error)

    def _computed(self, flight: Flight, prompt: TokenizedPrompt, job: Job) -> None:
        if isinstance(job.result, float):
            scored = Scored(job.result, len(prompt.ids), prompt.truncated)
            self._cache.end(flight, scored)
            self._put(flight.key, scored)
        else:
            self._cache.end(flight, None)
            self._put(flight.key, job.result)

    def _landed(self, flight: Flight) -> None:
        """Take the result of another call's computation; compute it here if that failed."""
        if flight.result is not None:
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
