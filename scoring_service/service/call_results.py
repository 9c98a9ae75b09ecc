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
from scoring_service.service.cache import Flight, Key, RawScore, ScoreCache
from scoring_service.tokenizing import TokenizedPrompt

Result: TypeAlias = RawScore | ScoringError
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Timings:
    """Time of a call by stage, seconds."""

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    """Longest wait among the call's prompts."""
    infer_s: float = 0.0
    """Sum over the call's prompts."""
    total_s: float = 0.0


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
    timings: Timings = field(default_factory=Timings)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: bool = False

    def request(self, keys: Iterable[Key]) -> None:
        """Take the known results; join or start the computation of the others."""
        known: dict[Key, Result] = {}
        mine: list[Flight] = []
        for key in keys:
            found = self._cache.begin(key, self._landed)
            if isinstance(found, RawScore):
                known[key] = found
            elif found[1]:
                mine.append(found[0])
        if known or not self._prompts:
            self._put(known)
        if mine:
            self._compute(mine)

    def _compute(self, flights: Sequence[Flight]) -> None:
        try:
            refusal = self._batcher.refuse_early(self._call)
            if refusal is not None:
                self._land(flights, [refusal] * len(flights))
                return
            started_s = time.monotonic()
            prompts = [self._prompts[flight.key] for flight in flights]
            tokenized = self._model.tokenizer.tokenize(prompts)
            self.timings.tokenize_s += time.monotonic() - started_s
            jobs = [Job(self._model, prompt.ids, self._call) for prompt in tokenized]
        except Exception:
            _log.exception("%d prompts could not be tokenized", len(flights))
            failure = ScoringError("the service failed; its log says how")
            self._land(flights, [failure] * len(flights))
            return
        self._batcher.submit(jobs, self._call, partial(self._computed, flights, tokenized, jobs))

    def _computed(
        self, flights: Sequence[Flight], tokenized: Sequence[TokenizedPrompt], jobs: Sequence[Job]
    ) -> None:
        results: list[Result] = []
        for prompt, job in zip(tokenized, jobs, strict=True):
            self.timings.queue_s = max(self.timings.queue_s, job.queue_s)
            self.timings.infer_s += job.infer_s
            results.append(
                RawScore(job.result, len(prompt.ids), prompt.truncated)
                if isinstance(job.result, float)
                else job.result
            )
        self._land(flights, results)

    def _land(self, flights: Sequence[Flight], results: Sequence[Result]) -> None:
        """Publish the scores among the results, and keep all of them."""
        for flight, result in zip(flights, results, strict=True):
            self._cache.end(flight, result if isinstance(result, RawScore) else None)
        self._put({flight.key: result for flight, result in zip(flights, results, strict=True)})

    def _landed(self, flight: Flight) -> None:
        """Take the result of another call's computation; compute it here if that failed."""
        if flight.result is not None:
            self._put({flight.key: flight.result})
        elif self._call.cancelled or time.monotonic() >= self._call.deadline_s:
            self._put({flight.key: too_late()})
        else:
            self.request([flight.key])

    def _put(self, results: Mapping[Key, Result]) -> None:
        with self._lock:
            if self._done:
                return
            self.results |= results
            self._done = len(self.results) == len(self._prompts)
            if not self._done:
                return
        self._on_done(self)
