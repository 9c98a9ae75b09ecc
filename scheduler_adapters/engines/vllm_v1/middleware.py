"""Scores for clients that know nothing of them: ASGI middleware for vLLM's OpenAI server.

It asks the scoring service for each request for an answer (`client_bodies.py` lists the endpoints)
and writes score, quantiles of the length, class and TBT target where vLLM takes them to the
scheduler (keys: `request_annotations`). Hints and priorities that a client has sent itself are
dropped, at every endpoint, unless its key may (`user_classes.py`) or all may (`client_hints`); the
class of a key stays. It fails open: a request waits `deadline_s` at most, and where no score can be
had in time it goes on without one, to be ranked by the median; where its client has kept it from
being scored (`KEPT_BACK`), it ranks last. The score is asked for up to `late_s` longer, and sent
after the request (`late_asking.py`). A client has at most `max_scores_per_key` scores under way,
and clients take turns. Answers, streams included, are passed
on untouched. At `/lengthwise/load` it answers itself: a JSON list with the newest report of each
engine, for a router (`engine_metrics.load_report`); it asks for a key where vLLM does.

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
from collections import Counter as Count
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from functools import partial
from ipaddress import IPv6Address, ip_address
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from lengthwise.errors import ConfigError
from scheduler_adapters.engines.engine_metrics import METRICS_FOLDER, read_loads
from scheduler_adapters.engines.score_channel import ScoreSender
from scheduler_adapters.engines.user_classes import UserClasses, bearer_token, read_user_classes
from scheduler_adapters.engines.vllm_v1 import client_bodies
from scheduler_adapters.engines.vllm_v1.client_bodies import HINT_HEADERS, PRIORITY, Prompts
from scheduler_adapters.engines.vllm_v1.late_asking import RETRIED, LateAsking
from scheduler_adapters.planner.request_annotations import (
    CLIENT_HINTS,
    SCORE,
    TBT_S,
    TICKET,
    USER_CLASS,
    score_hints,
)
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.fail_open import Answer, FailOpenScorer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

VARIABLE: Final = "LENGTHWISE_MIDDLEWARE"
"""vLLM makes middleware without arguments; this environment variable holds them, as JSON."""
LOAD_PATH: Final = "/lengthwise/load"
KEPT_BACK: Final = frozenset({"no_text", "budget", "invalid_prompt"})
"""Why a request is not scored, where that is in its client's hands: it holds token ids, too many
prompts or images only; too many are under way; its text is none that can be sent."""


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
    max_scores_per_key: int = 512
    """Scores under way, late ones included, for requests with one API key, or from one address
    where no key is asked for; further requests go without and rank last (`unscored_last`). Trusted
    keys have no limit. All together may have 1,024 late scores under way."""
    unscored_last: bool = True
    """Whether a request whose client has kept it from being scored (`KEPT_BACK`) ranks like the
    highest score so far; else, as all without a score, like the median. Those of trusted keys
    rank like the median."""
    open_load: bool = False
    """Whether /lengthwise/load answers without a key where vLLM asks for one."""

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s < 60:
            raise ConfigError(f"deadline_s is {self.deadline_s}; use seconds > 0 and below 60")
        if self.late_s is not None and not 0 < self.late_s < 3600:
            raise ConfigError(f"late_s is {self.late_s}; use seconds > 0 and below 3600, or none")
        if self.max_scores_per_key < 1:
            raise ConfigError(f"max_scores_per_key is {self.max_scores_per_key}; use 1 or more")


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
            "Requests that carried hints or a priority of their own, by whether these were kept or "
            "dropped, or the request refused: a form with hints in it.",
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


class ScorePlaces:
    """Scores under way by client, at most so many for each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Count[str] = Count()

    def take(self, client: str, count: int, is_limited: bool) -> bool:
        """Take places, which the client must leave; False if it has too few left."""
        if is_limited and self._taken[client] + count > self._most:
            return False
        self._taken[client] += count
        return True

    def leave(self, client: str, count: int) -> None:
        """Give places back."""
        self._taken[client] -= count
        if not self._taken[client]:
            del self._taken[client]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Client:
    """Who sends a request, and what it may."""

    name: str
    """By its key, if that is one of those that are known, else by its address."""
    is_let_in: bool
    """Whether vLLM will take its key."""
    may_hint: bool
    is_trusted: bool


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
    metrics_folder: Path | None = None
    """Where the engines leave their reports; None: they leave none."""
    open_load: bool = False
    unscored_last: bool = True
    places: ScorePlaces = field(default_factory=lambda: ScorePlaces(512))
    highest_score: float = -inf
    """Of those so far, late ones included."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path(scope) if scope["type"] in ("http", "websocket") else ""
        if scope["type"] != "http":
            if path in client_bodies.UNSCORED:
                self.metrics.count("unscored", "endpoint")
            await self.app(scope, receive, send)
            return
        client = self._client_of(scope)
        if self.metrics_folder is not None and (scope["method"], path) == ("GET", LOAD_PATH):
            may = client.is_let_in or self.open_load
            loads = read_loads(self.metrics_folder) if may else {"error": "Unauthorized"}
            await _send_json(send, loads, 200 if may else 401)
            return
        if path in client_bodies.UNSCORED:
            self.metrics.count("unscored", "endpoint")
        if scope["method"] != "POST" or (
            client_bodies.is_guarded(path) and not client.is_let_in  # vLLM refuses it.
        ):
            if path in client_bodies.SCORED and scope["method"] == "POST":
                self.metrics.count("unscored", "no_key")
            await self.app(scope, receive, send)
            return
        scope, has_priority = self._drop_headers(scope, client)
        kind = client_bodies.media_type(scope["headers"])
        # vLLM decodes no content encoding, so a body that says it has one is read as it is.
        if kind == b"application/json":
            await self._serve_json(client, path, has_priority, scope, receive, send)
        elif kind.startswith(b"multipart/") and not client.may_hint:
            await self._serve_form(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _serve_json(
        self,
        client: _Client,
        path: str,
        has_priority: bool,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        message, content = await _read_body(receive)
        prompts_of, required = client_bodies.SCORED.get(path, (None, ()))
        is_read = prompts_of is not None or client_bodies.may_hold_hints(content)
        body = client_bodies.parse(content, required) if is_read else None
        if body is None or message["type"] != "http.request":
            # The server answers such a body as it always does.
            if prompts_of is not None and message["type"] == "http.request":
                self.metrics.count("unscored", "unreadable")
            self._count_hints(has_priority, client)
            await self.app(scope, _replay([message], receive), send)
            return
        is_changed = self._drop_hints(body, has_priority, client, scope["headers"])
        ticket = None
        if prompts_of is not None:
            address = (scope.get("client") or (None,))[0]
            hints: dict[str, Any] = dict(
                self.classes.hints(self.classes.of(scope["headers"], address))
            )
            hints |= await self._score(body, prompts_of(body), client)
            is_changed |= client_bodies.attach(body, hints, path)
            ticket = hints.get(TICKET)
        if is_changed:
            scope, message = _with_body(scope, json.dumps(body).encode())
        receive = _replay([message], receive)
        if self.late is None or ticket is None:
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, receive, _stopping(self.late, ticket, send))
        finally:
            self.late.stop(ticket)

    async def _serve_form(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a form on unless it may hold hints: these cannot be taken out of it."""
        message, content = await _read_body(receive)
        if client_bodies.form_may_hold_hints(scope["headers"], content):
            self.metrics.client_hints.labels("refused").inc()
            said = "the form holds lengthwise_ hints or names a charset; send it without these"
            await _send_json(send, {"error": {"message": said, "code": 400}}, 400)
            return
        await self.app(scope, _replay([message], receive), send)

    def _client_of(self, scope: Scope) -> _Client:
        key, headers = bearer_token(scope["headers"]), scope["headers"]
        found = hash_of(key)
        # Every key is compared, so that the time taken reveals nothing.
        matches = [hmac.compare_digest(found, accepted) for accepted in self.key_hashes]
        is_trusted = self.classes.trusts(headers)
        is_known = any(matches) or is_trusted or self.classes.has_key(headers)
        return _Client(
            name=found if is_known else _network_of((scope.get("client") or ("",))[0]),
            is_let_in=not matches or any(matches),
            may_hint=self.client_hints or is_trusted,
            is_trusted=is_trusted,
        )

    def _drop_headers(self, scope: Scope, client: _Client) -> tuple[Scope, bool]:
        """Without the headers that set a priority or choose an engine, unless the client may;
        whether there was one."""
        headers = [header for header in scope["headers"] if header[0] not in HINT_HEADERS]
        if len(headers) == len(scope["headers"]):
            return scope, False
        return (scope if client.may_hint else {**scope, "headers": headers}), True

    def _drop_hints(
        self, body: dict[str, Any], has_priority: bool, client: _Client, headers: Any
    ) -> bool:
        """Take those of the client's own hints out that it may not send. Whether there were any."""
        own = client_bodies.own_hints(body)
        asks_priority = client_bodies.has_priority(body)
        self._count_hints(bool(own) or asks_priority or has_priority, client)
        if not client.may_hint:
            if asks_priority:
                del body[PRIORITY]
            return client_bodies.drop_hints(body, CLIENT_HINTS) or asks_priority
        of_key = {USER_CLASS, TBT_S} if self.classes.has_key(headers) else set()
        return client_bodies.drop_hints(body, of_key)

    def _count_hints(self, has_any: bool, client: _Client) -> None:
        if has_any:
            self.metrics.client_hints.labels("kept" if client.may_hint else "dropped").inc()

    async def _score(
        self, body: Mapping[str, Any], prompts: Prompts, client: _Client
    ) -> dict[str, Any]:
        reason = None
        if SCORE in client_bodies.own_hints(body):
            self.metrics.count("explicit")
            return {}
        if self.scorer is None:
            reason = "no_scorer"
        elif not prompts:
            reason = "no_text"
        elif not client.is_let_in:
            reason = "no_key"
        elif not self.places.take(client.name, len(prompts), not client.is_trusted):
            reason = "budget"
        else:
            return await self._ask(self.scorer, prompts, client)
        self.metrics.count("unscored", reason)
        return self._without_score(reason, client)

    def _without_score(self, reason: str, client: _Client) -> dict[str, Any]:
        """Hints that put a request behind all others where its client has kept it from a score."""
        is_last = self.unscored_last and reason in KEPT_BACK and not client.is_trusted
        if is_last and self.highest_score > -inf:
            return score_hints(self.highest_score, {})
        return {}

    async def _ask(
        self, scorer: FailOpenScorer, prompts: Prompts, client: _Client
    ) -> dict[str, Any]:
        """The hints of prompts that have places, or the ticket of a score that may come later."""
        started_s = time.monotonic()
        ask = partial(self._ask_longest, scorer, prompts, client)
        leave = partial(self.places.leave, client.name, len(prompts))
        ticket = None
        asking = asyncio.ensure_future(ask())
        try:
            await asyncio.wait({asking}, timeout=self.deadline_s)
            self.metrics.waited_s.observe(time.monotonic() - started_s)
            answer = asking.result() if asking.done() else Answer(None, "timeout")
            if not asking.done() and self.late is not None:
                scorer.out_of_time()
            if answer.score is None:
                is_late = answer.outcome == "timeout"
                self.metrics.count("late" if is_late else "unscored", answer.outcome)
                if self.late is not None and answer.outcome in RETRIED:
                    ticket = self.late.start(asking, ask, leave)
                if ticket is not None:
                    return {TICKET: ticket}
                return self._without_score(answer.outcome, client)
            self.metrics.count("scored")
            if isfinite(answer.score.value):
                return score_hints(answer.score.value, answer.score.quantiles)
            return {}
        finally:
            if ticket is None:
                asking.cancel()
                leave()

    async def _ask_longest(
        self, scorer: FailOpenScorer, prompts: Prompts, client: _Client
    ) -> Answer:
        answer = await _longest(scorer, prompts, client.name)
        if answer.score is not None and isfinite(answer.score.value):  # in time or late
            self.highest_score = max(answer.score.value, self.highest_score)
        return answer


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
            late = LateAsking(sender, late_s=late_s, count=metrics.count_late)
        super().__init__(
            app,
            scorer=scorer,
            metrics=metrics,
            deadline_s=config.deadline_s,
            late=late,
            classes=read_user_classes(Path(config.classes)) if config.classes else UserClasses(),
            client_hints=config.client_hints,
            key_hashes=config.key_hashes,
            metrics_folder=Path(folder) if folder else None,
            open_load=config.open_load,
            unscored_last=config.unscored_last,
            places=ScorePlaces(config.max_scores_per_key),
        )


def hash_of(key: str) -> str:
    """An API key as `MiddlewareConfig.key_hashes` holds it: SHA-256, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


async def _longest(scorer: FailOpenScorer, prompts: Prompts, client: str) -> Answer:
    """The highest score among the prompts of one request; one without a score decides."""
    answers = await asyncio.gather(*(scorer.ask_async(prompt, client) for prompt in prompts))
    return max(answers, key=lambda answer: inf if answer.score is None else answer.score.value)


def _scorer(config: MiddlewareConfig, budget_s: float) -> FailOpenScorer | None:
    if config.scorer is None:
        return None
    return FailOpenScorer(
        config.scorer,
        budget_s=budget_s,
        target_model=config.target_model,
        security=config.security,
    )


def _network_of(address: str | None) -> str:
    """A client by its address; of IPv6 by its network, in which it has all addresses."""
    try:
        found = ip_address(address or "")
    except ValueError:
        return address or ""
    return str(int(found) >> 64) if isinstance(found, IPv6Address) else str(found)


async def _send_json(send: Send, content: object, status: int) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


def _path(scope: Scope) -> str:
    """The path that vLLM's routes are compared with."""
    path, root = scope["path"], scope.get("root_path", "")
    inner: str = path.removeprefix(root) if path.startswith(f"{root}/") else path
    return inner


async def _read_body(receive: Receive) -> tuple[Message, bytes]:
    """Return a body in one message; where its client left amid it, the message of that."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request":
            return message, b""
        if not message.get("more_body", False):
            content = b"".join(parts)
            return {"type": "http.request", "body": content, "more_body": False}, content


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


def _with_body(scope: Scope, body: bytes) -> tuple[Scope, Message]:
    length = (b"content-length", str(len(body)).encode())
    unframed = (b"content-length", b"transfer-encoding")
    headers = [(key, value) for key, value in scope["headers"] if key not in unframed]
    return (
        {**scope, "headers": [*headers, length]},
        {"type": "http.request", "body": body, "more_body": False},
    )
