"""Scores for clients that know nothing of them: ASGI middleware for vLLM's OpenAI server.

It asks the scoring service for each completion, chat and responses request and writes score,
quantiles of the length, class and TBT target into the body's `vllm_xargs` (`hints.py` names the
keys). What a client has written there itself is dropped, unless its key may (`user_classes.py`) or
all may (`client_hints`); the class of a key stays. It fails open: a request waits `deadline_s` at
most, and where no score can be had in time it goes on without one, to be ranked by the median. The
score is asked for up to `late_s` longer, and sent after the request (`late_asking.py`). Answers,
streams included, are passed on untouched. At `/lengthwise/load` it answers itself: a JSON list with
the newest report of each engine, for a router (`engine_metrics.load_report`).

`serve-vllm` starts vLLM with it. By hand: set `LENGTHWISE_MIDDLEWARE` to the JSON of a
`MiddlewareConfig`, and add `--middleware scheduler_adapters.engines.vllm_v1.middleware.VllmScores`.
vLLM checks API keys behind it; so that refused requests cost no score, it is told their hashes
(`key_hashes`). Imports no engine.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import hmac
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from scheduler_adapters.engines.engine_metrics import METRICS_FOLDER, read_loads
from scheduler_adapters.engines.score_channel import ScoreSender
from scheduler_adapters.engines.user_classes import (
    UserClasses,
    bearer_token,
    read_user_classes,
)
from scheduler_adapters.engines.vllm_v1.late_asking import RETRIED, LateAsking
from scheduler_adapters.planner.hints import (
    CLIENT_HINTS,
    SCORE,
    TBT_S,
    TICKET,
    USER_CLASS,
    score_hints,
)
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.fail_open import Answer, FailOpenScorer
from scoring_service.errors import ConfigError
from scoring_service.tables import prompt_text

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

VARIABLE: Final = "LENGTHWISE_MIDDLEWARE"
"""vLLM makes middleware without arguments; this environment variable holds them, as JSON."""
XARGS: Final = "vllm_xargs"
LOAD_PATH: Final = "/lengthwise/load"
_PROMPT_OF: Final = {
    "/v1/completions": (prompt_text.of_completion, None),
    "/v1/chat/completions": (prompt_text.of_chat, "messages"),
    "/v1/responses": (prompt_text.of_response, "input"),
}
"""With the field that a body must have: vLLM answers with the number of fields where it lacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreConfig:
    """The scoring service, and the deadline of an answer."""

    scorer: str | None = None
    """HOST:PORT of the scoring service; none: only clients that send a score are ranked by it."""
    deadline_s: float = 0.05
    """The longest that a request waits for its score, seconds; then it goes on without."""
    late_s: float | None = 5.0
    """How much longer a score is asked for, seconds: it still moves a request that waits in the
    engine when it comes. None: no longer."""
    target_model: str | None = None
    """Model that the scoring service is calibrated for: requests then also carry the quantiles of
    its response lengths. None: scores only."""

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s < 60:
            raise ConfigError(f"deadline_s is {self.deadline_s}; use seconds > 0 and below 60")
        if self.late_s is not None and not 0 < self.late_s < 3600:
            raise ConfigError(f"late_s is {self.late_s}; use seconds > 0 and below 3600, or none")


@dataclass(frozen=True, kw_only=True, slots=True)
class MiddlewareConfig(ScoreConfig):
    """What the API server process must know."""

    security: ClientSecurity = field(default_factory=ClientSecurity)
    """TLS and token towards the scoring service."""
    classes: str | None = None
    """JSON file of user classes, see `user_classes.py`."""
    client_hints: bool = False
    """Whether every client may send its own score, quantiles, class and target."""
    key_hashes: Sequence[str] = field(default_factory=list)
    """SHA-256 of vLLM's API keys, in hex; requests with another key are not scored. None of them:
    all are."""
    max_body_bytes: int = 16 << 20
    """Larger bodies (images, ...) pass unread and unscored."""
    metrics_dir: str | None = None
    """Folder that vLLM's processes share their metrics in; removed when the API server ends."""

    def to_json(self) -> str:
        """For `LENGTHWISE_MIDDLEWARE`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> MiddlewareConfig:
        """Read what `to_json` wrote. Raises ConfigError if it is anything else."""
        try:
            values = json.loads(text)
            security = ClientSecurity(**values.pop("security", {}))
            return cls(security=security, **values)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{VARIABLE} is no JSON of a MiddlewareConfig ({error}); let serve-vllm set it"
            ) from error


class ScoreMetrics:
    """Counters of the requests' scores, for Prometheus."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.requests = Counter(
            "lengthwise_requests",
            "Requests by what became of their score: scored, explicit (sent by the client), late "
            "(not within the deadline), unscored; the reason says why there is none.",
            ["outcome", "reason"],
            registry=registry,
        )
        self.client_hints = Counter(
            "lengthwise_client_hints",
            "Requests that carried hints of their own, by whether these were kept or dropped.",
            ["outcome"],
            registry=registry,
        )
        self.waited_s = Histogram(
            "lengthwise_score_wait_seconds",
            "Time that a request waited for its score.",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
            registry=registry,
        )

        self.late_scores = Counter(
            "lengthwise_late_scores",
            "Requests whose score was asked for after the deadline, by what came of it: sent to "
            "the engine, started (the request was admitted first), full (too many at once), or "
            "why there is none.",
            ["outcome"],
            registry=registry,
        )

    def count(self, outcome: str, reason: str = "") -> None:
        """Count a request."""
        self.requests.labels(outcome=outcome, reason=reason).inc()

    def count_late(self, outcome: str) -> None:
        """Count a request whose score was asked for after the deadline."""
        self.late_scores.labels(outcome=outcome).inc()


@dataclass(eq=False)
class ScoreMiddleware:
    """Attaches scores and classes to the bodies of requests for an answer."""

    app: App
    _: KW_ONLY
    scorer: FailOpenScorer | None
    """None: requests get no score here."""
    metrics: ScoreMetrics
    deadline_s: float = 0.05
    late: LateAsking | None = None
    """None: a score that misses the deadline is not used."""
    classes: UserClasses = field(default_factory=UserClasses)
    client_hints: bool = False
    """Whether every client may send hints of its own."""
    key_hashes: Sequence[str] = ()
    """As of `MiddlewareConfig`."""
    max_body_bytes: int = 16 << 20
    metrics_folder: Path | None = None
    """Where the engines leave their reports; None: they leave none."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.metrics_folder is not None and _asks_load(scope):
            await _send_json(send, read_loads(self.metrics_folder))
            return
        wanted = _PROMPT_OF.get(_path(scope)) if _is_json_post(scope) else None
        if wanted is not None and not self._is_let_in(scope):
            self.metrics.count("unscored", "no_key")
            wanted = None
        if wanted is None:
            await self.app(scope, receive, send)
            return
        prompt_of, required = wanted
        messages, content = await _read_body(receive, self.max_body_bytes)
        body = None if content is None else _parse(content, required)
        if body is None:
            # The server answers such a body as it always does.
            if messages[-1]["type"] == "http.request":
                self.metrics.count("unscored", "too_large" if content is None else "unreadable")
            await self.app(scope, _replay(messages, receive), send)
            return
        is_changed = self._drop_hints(body, scope)
        client = (scope.get("client") or (None,))[0]
        hints = self.classes.hints(self.classes.of(scope["headers"], client))
        hints |= await self._score(body, prompt_of(body))
        if _attach(body, hints) or is_changed:
            scope, messages = _with_body(scope, json.dumps(body).encode())
        receive = _replay(messages, receive)
        ticket = body[XARGS].get(TICKET)
        if self.late is None or ticket is None:
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, receive, _stopping(self.late, ticket, send))
        finally:
            self.late.stop(ticket)

    def _is_let_in(self, scope: Scope) -> bool:
        """Whether vLLM will take the request's key."""
        found = hash_of(bearer_token(dict(scope["headers"])))
        # Every key is compared, so that the time taken reveals nothing.
        matches = [hmac.compare_digest(found, accepted) for accepted in self.key_hashes]
        return not matches or any(matches)

    def _drop_hints(self, body: dict[str, Any], scope: Scope) -> bool:
        """Take those of the client's own hints out that it may not send. Whether there were any."""
        carried, headers = body[XARGS], scope["headers"]
        may = self.client_hints or self.classes.trusts(headers)
        own = carried.keys() & CLIENT_HINTS
        if own:
            self.metrics.client_hints.labels("kept" if may else "dropped").inc()
        dropped = carried.keys() & {TICKET} if may else own | (carried.keys() & {TICKET})
        if may and self.classes.has_key(headers):
            dropped |= own & {USER_CLASS, TBT_S}
        for key in dropped:
            del carried[key]
        return bool(dropped)

    async def _score(self, body: Mapping[str, Any], prompt: str | None) -> dict[str, Any]:
        if SCORE in body[XARGS]:
            self.metrics.count("explicit")
        elif self.scorer is None:
            self.metrics.count("unscored", "no_scorer")
        elif prompt is None:
            self.metrics.count("unscored", "no_text")
        else:
            started_s = time.monotonic()
            asking = asyncio.ensure_future(self.scorer.ask_async(prompt))
            await asyncio.wait({asking}, timeout=self.deadline_s)
            self.metrics.waited_s.observe(time.monotonic() - started_s)
            answer = asking.result() if asking.done() else Answer(None, "timeout")
            if not asking.done() and self.late is not None:
                self.scorer.silent_since(started_s)
            if answer.score is None:
                late = answer.outcome == "timeout"
                self.metrics.count("late" if late else "unscored", answer.outcome)
                return self._ask_further(prompt, answer, asking)
            self.metrics.count("scored")
            if isfinite(answer.score.value):
                return score_hints(answer.score.value, answer.score.quantiles)
        return {}

    def _ask_further(
        self, prompt: str, answer: Answer, asking: asyncio.Future[Answer]
    ) -> dict[str, Any]:
        """Return the ticket of a score that may come later, as a hint; empty where none will."""
        ticket = None
        if self.late is not None and answer.outcome in RETRIED:
            ticket = self.late.start(prompt, asking)
        if ticket is None:
            asking.cancel()
            return {}
        return {TICKET: ticket}


class VllmScores(ScoreMiddleware):
    """The middleware for vLLM's `--middleware`, set up by `LENGTHWISE_MIDDLEWARE`."""

    def __init__(self, app: App) -> None:
        config = MiddlewareConfig.from_json(os.environ.get(VARIABLE, "{}"))
        folder = os.environ.get(METRICS_FOLDER)
        if config.metrics_dir is not None:
            atexit.register(shutil.rmtree, config.metrics_dir, ignore_errors=True)
        metrics, late_s = ScoreMetrics(), config.late_s if folder else None
        scorer = _scorer(config, config.deadline_s + (late_s or 0.0))
        late = None
        if scorer is not None and folder and late_s is not None:
            sender = ScoreSender(Path(folder))
            late = LateAsking(scorer, sender, late_s=late_s, count=metrics.count_late)
        super().__init__(
            app,
            scorer=scorer,
            metrics=metrics,
            deadline_s=config.deadline_s,
            late=late,
            classes=read_user_classes(Path(config.classes)) if config.classes else UserClasses(),
            client_hints=config.client_hints,
            key_hashes=config.key_hashes,
            max_body_bytes=config.max_body_bytes,
            metrics_folder=Path(folder) if folder else None,
        )


def hash_of(key: str) -> str:
    """An API key as `MiddlewareConfig.key_hashes` holds it: SHA-256, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def _scorer(config: MiddlewareConfig, budget_s: float) -> FailOpenScorer | None:
    if config.scorer is None:
        return None
    return FailOpenScorer(
        config.scorer,
        budget_s=budget_s,
        target_model=config.target_model,
        security=config.security,
    )


def _is_json_post(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    headers = dict(scope["headers"])
    media_type: bytes = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    # vLLM decodes no content encoding, so a body that says it has one is read as it is.
    return media_type == b"application/json"


def _asks_load(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] == "GET" and _path(scope) == LOAD_PATH


async def _send_json(send: Send, content: object) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


async def _read_body(receive: Receive, max_bytes: int) -> tuple[list[Message], bytes | None]:
    """Return the messages of a body and its bytes; None if too large, or without its client."""
    messages: list[Message] = []
    num_bytes = 0
    while True:
        message = await receive()
        messages.append(message)
        num_bytes += len(message.get("body", b""))
        if message["type"] != "http.request" or num_bytes > max_bytes:
            return messages, None
        if not message.get("more_body", False):
            return messages, b"".join(message.get("body", b"") for message in messages)


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """A `receive` that gives `messages` first; later ones tell that the client has gone."""
    pending = deque(messages)

    async def replayed() -> Message:
        return pending.popleft() if pending else await receive()

    return replayed


def _stopping(late: LateAsking, ticket: str, send: Send) -> Send:
    """A `send` that ends the asking for a score with the first bytes of the answer."""

    async def stopping(message: Message) -> None:
        if message.get("body"):
            late.stop(ticket)
        await send(message)

    return stopping


def _parse(content: bytes, required: str | None) -> dict[str, Any] | None:
    """A body with an object of extra arguments, empty if it had none; None if it is no such."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or (required is not None and required not in body):
        return None
    if body.get(XARGS) is None:
        body[XARGS] = {}
    return body if isinstance(body[XARGS], dict) else None


def _attach(body: dict[str, Any], added: Mapping[str, Any]) -> bool:
    """Put `added` into the body, where the client's own arguments win. Whether any was new."""
    new = {key: value for key, value in added.items() if key not in body[XARGS]}
    body[XARGS] |= new
    return bool(new)


def _with_body(scope: Scope, body: bytes) -> tuple[Scope, list[Message]]:
    length = (b"content-length", str(len(body)).encode())
    unframed = (b"content-length", b"transfer-encoding")
    headers = [(key, value) for key, value in scope["headers"] if key not in unframed]
    return (
        {**scope, "headers": [*headers, length]},
        [{"type": "http.request", "body": body, "more_body": False}],
    )
