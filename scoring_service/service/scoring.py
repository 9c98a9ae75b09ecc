"""The service without gRPC: check prompts, score them, estimate lengths, record reports."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lengthwise.bundle import LengthCurve
from lengthwise.errors import InvalidPrompt, ScoringError, ServiceOverloaded
from lengthwise.tables.prompt_text import CutText
from scoring_service.ranker.model import RankerModel
from scoring_service.service.batching import Call, MicroBatcher
from scoring_service.service.call_results import CallResults, Key, Result, ScoreCache
from scoring_service.service.config import ServerConfig
from scoring_service.service.reports import Observation, ReportBook, ReportLog
from scoring_service.shares import Entry, FairQueue

_MAX_LOGGED: Final = 65_536
"""Logged characters of a reported prompt: far more than any ranker reads."""
_MAX_REVISION: Final = 64


class Timings(NamedTuple):
    """Time of a call by stage, seconds."""

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    """Longest wait among the call's prompts."""
    infer_s: float = 0.0
    """Sum over the call's prompts."""
    total_s: float = 0.0


@dataclass(slots=True)
class CallAnswer:
    """Results of one call in the order of its prompts, all from one revision."""

    revision: str
    items: list[Result]
    timings: Timings


class ScoringService:
    """Scores prompts with its present model. Threads share it."""

    def __init__(self, model: RankerModel, config: ServerConfig) -> None:
        self.model = model
        """Served model. A reload replaces it; a call under way keeps the old one."""
        self.config = config
        self.batcher = MicroBatcher(
            num_runners=config.runners(model.scorer.device), max_queued=config.max_queued_prompts
        )
        self.cache = ScoreCache(config.cache_entries)
        self._calls = FairQueue[Call]()
        self._lock = threading.Lock()
        path = config.report_log
        log = None if path is None else ReportLog(path, config.max_report_log_bytes)
        self.reports = ReportBook(log)

    def begin(
        self,
        prompts: Sequence[str],
        target_model: str,
        call: Call,
        on_answer: Callable[[CallAnswer], None],
    ) -> None:
        """Start to score prompts. One that cannot be scored gets an error, the others a score.

        `on_answer` is called once with the answer, on a thread of the batcher, or on this one
        before `begin` returns. It must be short and must not raise. Raises InvalidPrompt for no
        prompts, too many, or an unknown target model, and ServiceOverloaded for too many calls.
        """
        started_s = time.monotonic()
        limit = self.config.max_batch_prompts
        if not 0 < len(prompts) <= limit:
            raise InvalidPrompt(f"the batch has {len(prompts)} prompts; send 1 to {limit}")
        model = self.model
        curve = _length_curve(model, target_model)
        starts: dict[Key, str] = {}
        keys: list[Key | InvalidPrompt] = []
        for prompt in prompts:
            if (refusal := self._refusal(prompt)) is not None:
                keys.append(refusal)
                continue
            start = model.tokenizer.kept(prompt)
            # Another prompt may be what is left of this one.
            kind = "cut" if isinstance(start, CutText) else ""
            keys.append(key := ScoreCache.key(model.revision + kind, start))
            starts[key] = start
        place = self._enter(call)

        def finish(found: CallResults) -> None:
            with self._lock:
                self._calls.leave(place)
            results = [found.results[k] if isinstance(k, tuple) else k for k in keys]
            timings = Timings(
                found.tokenize_s,
                max((job.queue_s for job in found.jobs), default=0.0),
                sum(job.infer_s for job in found.jobs),
                time.monotonic() - started_s,
            )
            items = [
                result
                if curve is None or isinstance(result, ScoringError)
                else result._replace(length=curve.at(result.score))
                for result in results
            ]
            on_answer(CallAnswer(model.revision, items, timings))

        pairs = zip(keys, call.owners, strict=False)
        owners = {key: owner for key, owner in pairs if isinstance(key, tuple)}
        found = CallResults(model, self.cache, self.batcher, starts, call, finish, owners)
        if starts:
            found.request(starts)
        else:
            finish(found)

    def _enter(self, call: Call) -> Entry[Call]:
        limit = self.config.max_concurrent_calls
        with self._lock:
            if self._calls.fits(call.client, limit):
                return self._calls.enter(call.client, call)
        raise self.overloaded(f"{limit} calls are being served, the most there may be")

    def overloaded(self, reason: str, min_wait_s: float = 0.001) -> ServiceOverloaded:
        """Return the refusal of a call, with the time to wait."""
        wait_s = max(self.batcher.predicted_wait_s(), min_wait_s)
        return ServiceOverloaded(f"{reason}; try again later", retry_after_s=wait_s)

    def report(self, observations: Sequence[Observation]) -> int:
        """Record observed lengths; return the number of those of the served revision.

        Raises InvalidPrompt if one observation is impossible or beyond a limit, and ScoringError if
        the log cannot be written; the lengths are then counted.
        """
        limit = self.config.max_batch_prompts
        if len(observations) > limit:
            raise InvalidPrompt(f"{len(observations)} observations arrived; send at most {limit}")
        model = self.model
        kept = []
        for seen in observations:
            if not seen.target_model:
                raise InvalidPrompt("an observation names no target model; send which one answered")
            _length_curve(model, seen.target_model)
            if not math.isfinite(seen.score) or len(seen.revision) > _MAX_REVISION:
                raise InvalidPrompt(
                    f"score {seen.score}, revision {seen.revision!r:.40}; send what Score answered"
                )
            if seen.prompt and (refusal := self._refusal(seen.prompt)) is not None:
                raise refusal
            kept.append(seen._replace(prompt=seen.prompt[:_MAX_LOGGED]))
        return self.reports.add(kept, model.revision)

    def _refusal(self, prompt: str) -> InvalidPrompt | None:
        if not prompt:
            return InvalidPrompt("the prompt is empty; send at least one character")
        # A character has at most 4 bytes, so most prompts need no encoding to be measured.
        limit = self.config.max_prompt_bytes
        if len(prompt) * 4 <= limit or len(prompt.encode()) <= limit:
            return None
        return InvalidPrompt(
            f"the prompt has {len(prompt.encode())} bytes, the service takes up to {limit}; "
            "it reads only the beginning and the end: send these"
        )


def _length_curve(model: RankerModel, target_model: str) -> LengthCurve | None:
    if not target_model:
        return None
    if (curve := model.length_curves.get(target_model)) is None:
        known = ", ".join(sorted(model.length_curves)) or "none: it was not calibrated"
        raise InvalidPrompt(
            f"no calibration for target model {target_model!r}; this bundle has {known}"
        )
    return curve
