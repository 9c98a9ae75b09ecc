"""Scores of requests by the scoring service, within a deadline, and the budgets of clients.

It fails open: a request without a score by `deadline_s` is served without one. A later score is
sent to the engine, where it may still move a request that waits.
"""

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf, isfinite
from typing import Annotated, Any, ClassVar, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from lengthwise.settings import Count, Range, settings
from lengthwise.tables.prompt_text import CutText
from scheduler_adapters.engines.bundle_scoring import Deadline, cut_score
from scheduler_adapters.engines.score_channel import RETRIED, LateScoring
from scheduler_adapters.engines.vllm_v1.asgi import Message, Send
from scheduler_adapters.engines.vllm_v1.client_bodies import Prompts, held
from scheduler_adapters.planner.request_annotations import REQUEST_KEY, SCORE, score_annotations
from scoring_service.client.fail_open import Answer, FailOpenScorer

UNSCORABLE: Final = frozenset({"no_text", "budget", "invalid_prompt"})
"""Reasons for no score that a client controls: token ids, images only or too many prompts in a
request; too many requests at once; text that cannot be encoded."""


@settings
class ScoreConfig:
    """The scoring service and the time limits of its answers."""

    SHARED: ClassVar = ("deadline_s", "target_model", "unscored_last")
    """Settings that a ranker in the engine has too."""
    scorer: str | None = None
    """HOST:PORT of the scoring service; none: only scores sent by clients count."""
    deadline_s: Deadline = 0.05
    """Most seconds that a request waits for its score before it is served without one."""
    late_s: Annotated[float, Range(above=0, below=3600)] | None = 5.0
    """Further seconds in which a late score may still move a request that waits in the engine.
    None: late scores are not used."""
    target_model: str | None = None
    """Model for which the scoring service is calibrated: requests then also carry the quantiles of
    its response lengths. None: scores only."""
    max_scores_per_key: Count = 512
    """Most scores in progress for one API key, or one address if there are no keys. Late scores
    count. Further requests get no score and rank last (`unscored_last`). Trusted keys have no
    limit. All clients together have at most 1,024 late scores in progress."""
    unscored_last: bool = True
    """True: a request that its client has made unscorable ranks like the highest score so far, one
    that the ranker read in part just before it. False: like the median, and by that part, as do
    requests of trusted keys."""
    open_load: bool = False
    """True: /lengthwise/load needs no key even if vLLM requires one."""


class ScoreMetrics:
    """Counters of the requests' scores, for Prometheus."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        counter = partial(Counter, registry=registry)
        self.requests = counter(
            "lengthwise_requests",
            "Requests by the outcome of their score: scored, explicit (sent by the client), late "
            "(not within the deadline), engine (scored there, see lengthwise_engine_requests), "
            "unscored; with the reason for no score, or cut.",
            ["outcome", "reason"],
        )
        self.client_hints = counter(
            "lengthwise_client_hints",
            "Requests with hints or a priority of the client's, by whether these were kept or "
            "dropped, or the request refused: a form with hints in it.",
            ["outcome"],
        )
        self.waited_s = Histogram(
            "lengthwise_score_wait_seconds",
            "Time that a request waited for its score.",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
            registry=registry,
        )
        self.late_scores = counter(
            "lengthwise_late_scores",
            "Scores requested after the deadline, by outcome: sent to the engine, started (the "
            "request was admitted first), full (too many at once), or the reason for no score.",
            ["outcome"],
        )
        self.dropped_reports = Gauge(
            "lengthwise_dropped_reports",
            "Reports of an engine that could not be read.",
            registry=registry,
        )
        # With several API servers they are pages of files, which a full disk cannot extend.
        for reason in UNSCORABLE | RETRIED | {"error", "no_key", "no_scorer", "unreadable"}:
            self.requests.labels("unscored", reason)
            self.late_scores.labels(reason)
        for pair in (("scored", ""), ("explicit", ""), ("engine", ""), ("late", "timeout")):
            self.requests.labels(*pair)

        self._with_labels = cache(self.requests.labels)

    def count(self, outcome: str, reason: str = "") -> None:
        """Count a request."""
        self._with_labels(outcome, reason).inc()

    def count_late(self, outcome: str) -> None:
        """Count a score requested after the deadline."""
        self.late_scores.labels(outcome).inc()


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """Identity and permissions of the client of a request."""

    token: str = field(repr=False)
    name: str
    """Hash of a known key, else the address."""
    share: str
    """Name for the engine, which shows neither."""
    is_let_in: bool
    """True if vLLM accepts its key."""
    may_hint: bool
    is_trusted: bool


class RequestScores:
    """Scores of the requests of one API server.

    Args:
        scorer: None: requests get no score here.
        late: None: a score that misses the deadline is not used.
        in_engine: True: the engine scores its prompts itself; without a `scorer` here.
    """

    def __init__(
        self,
        config: ScoreConfig,
        scorer: FailOpenScorer | None,
        metrics: ScoreMetrics,
        late: LateScoring | None = None,
        *,
        in_engine: bool = False,
    ) -> None:
        self.config = config
        self.in_engine = in_engine
        self.scorer = scorer
        self.metrics = metrics
        self.late = late
        self.highest_score = -inf
        """Highest score so far, late ones included."""
        self.highest_quantiles: Mapping[float, float] = {}
        """Quantiles of the highest score."""
        self.in_progress: Tally[str] = Tally()
        """Client -> number of its prompts that are being scored."""

    async def annotations(
        self, body: Mapping[str, Any], prompts: Prompts, client: Client
    ) -> dict[str, Any]:
        """Return the annotations of a request's score, or the key of a score that may be late."""
        if body and SCORE in held(body):
            self.metrics.count("explicit")
            return {}
        if self.scorer is None:
            self.count_elsewhere("no_scorer")
            return {}
        in_progress = self.in_progress[client.name] + len(prompts)
        is_over = in_progress > self.config.max_scores_per_key and not client.is_trusted
        if self.is_away:
            reason = "breaker_open"
        elif not prompts:
            reason = "no_text"
        elif not client.is_let_in:
            reason = "no_key"
        elif is_over and not self.scorer.away_s:
            # Where the service is late, too many at once are not of the client's making.
            in_time = await self.scorer.answers_within(self.config.deadline_s)
            reason = "budget" if in_time else "overloaded"
        else:
            return await self._request_score(self.scorer, prompts, client)
        self.metrics.count("unscored", reason)
        return self._without_score(reason, client)

    def count_elsewhere(self, reason: str) -> None:
        """Count a request that is scored in the engine, or, for that reason, nowhere."""
        self.metrics.count(*(("engine",) if self.in_engine else ("unscored", reason)))

    @contextmanager
    def until_answered(self, key: str | None, send: Send) -> Iterator[Send]:
        """Yield a `send` for the answer; its first bytes, or its end, cancel a late score."""
        if (late := self.late) is None or key is None:
            yield send
            return

        async def stopping(message: Message) -> None:
            if message.get("body"):
                late.stop(key)
            await send(message)

        try:
            yield stopping
        finally:
            late.stop(key)

    @property
    def is_away(self) -> bool:
        """Return whether no service is there, or none within the time of a late score."""
        return self.scorer is None or (self.scorer.away_s or 0.0) > (self.config.late_s or 0.0)

    def _without_score(self, reason: str, client: Client) -> dict[str, Any]:
        is_last = reason in UNSCORABLE and self.config.unscored_last and not client.is_trusted
        is_away = self.scorer is not None and self.scorer.away_s  # then by arrival
        if is_away or not is_last or self.highest_score == -inf:
            return {}
        return score_annotations(self.highest_score, self.highest_quantiles)

    async def _request_score(
        self, scorer: FailOpenScorer, prompts: Prompts, client: Client
    ) -> dict[str, Any]:
        started_s, key = time.monotonic(), None
        # A service that was away delays no request by its trial: a score is late, then.
        is_trial = scorer.away_s is not None and self.late is not None
        request = partial(self._ask, scorer, prompts, client)
        requested = request()
        try:
            if not requested.done():
                await asyncio.wait({requested}, timeout=0 if is_trial else self.config.deadline_s)
            self.metrics.waited_s.observe(time.monotonic() - started_s)
            answer = requested.result() if requested.done() else Answer(None, "timeout")
            if not requested.done() and self.late is not None and not is_trial:
                scorer.out_of_time()
            if answer.score is not None:
                self.metrics.count("scored", answer.outcome.removeprefix("scored"))
                value, quantiles = answer.score.value, answer.score.quantiles
                return score_annotations(value, quantiles) if isfinite(value) else {}
            outcome = answer.outcome
            self.metrics.count("late" if outcome == "timeout" else "unscored", outcome)
            if self.late is not None and outcome in RETRIED:
                key = self.late.start(requested, request)
            return self._without_score(outcome, client) if key is None else {REQUEST_KEY: key}
        finally:
            if key is None:
                requested.cancel()

    def _ask(
        self, scorer: FailOpenScorer, prompts: Prompts, client: Client
    ) -> asyncio.Future[Answer]:
        """Request a score; until the answer the prompts are in progress."""
        if away_s := scorer.away_s:
            away: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            away.set_result(Answer(None, "breaker_open", away_s))
            return away

        def answered(_: object) -> None:
            self.in_progress[client.name] -= len(prompts)
            if not self.in_progress[client.name]:
                del self.in_progress[client.name]

        self.in_progress[client.name] += len(prompts)
        asked = asyncio.ensure_future(self._highest(scorer, prompts, client))
        asked.add_done_callback(answered)
        return asked

    async def _highest(self, scorer: FailOpenScorer, prompts: Prompts, client: Client) -> Answer:
        """Return the highest score among the prompts, or the answer of a prompt without one."""
        answers = await asyncio.gather(*(scorer.ask_async(one, client.name) for one in prompts))
        highest = max(answers, key=lambda each: inf if each.score is None else each.score.value)
        score = highest.score
        if score is None or not isfinite(score.value):
            return highest
        if score.value >= self.highest_score:  # in time or late
            self.highest_score, self.highest_quantiles = score.value, score.quantiles
        is_cut = any(isinstance(prompt, CutText) for prompt in prompts)
        is_cut |= any(each.score is not None and each.score.truncated for each in answers)
        if not is_cut or client.is_trusted or not self.config.unscored_last:
            return highest
        value = cut_score(score.value, self.highest_score)
        return Answer(replace(score, value=value, quantiles=self.highest_quantiles), "cut")
