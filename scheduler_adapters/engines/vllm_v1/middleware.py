"""Scores for unmodified clients: ASGI middleware for vLLM's OpenAI server.

The middleware adds score, length quantiles, class and TBT target to the body of each generation
request. Hints and priorities of a client are dropped, unless its key is trusted (`user_classes.py`)
or `client_hints` is true. It fails open: a request without a score by `deadline_s` is served
without one. Answers, streams included, pass unchanged. `/lengthwise/load` returns the newest load
report of each engine, for a router.

`serve-vllm` starts vLLM with it. By hand: set `LENGTHWISE_MIDDLEWARE` to the JSON of a
`MiddlewareConfig` and `FORWARDED_ALLOW_IPS` to nothing, and add
`--middleware scheduler_adapters.engines.vllm_v1.middleware.VllmScores`. Imports no engine.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import os
import shutil
import time
from collections import Counter as Count
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import cache, lru_cache, partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from lengthwise.addresses import network_of
from lengthwise.errors import ConfigError, at_least, require
from lengthwise.tables.prompt_text import CutText
from scheduler_adapters.engines.bundle_scoring import cut_score
from scheduler_adapters.engines.engine_metrics import exposition
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER, EngineReports
from scheduler_adapters.engines.score_channel import RETRIED, LateScoring
from scheduler_adapters.engines.user_classes import UserClasses, bearer_token, read_user_classes
from scheduler_adapters.engines.vllm_v1 import client_bodies
from scheduler_adapters.engines.vllm_v1.client_bodies import HINT_HEADERS, PRIORITY, Prompts
from scheduler_adapters.planner.request_annotations import (
    CLIENT,
    FROM_CLIENTS,
    REQUEST_KEY,
    SCORE,
    TBT_S,
    USER_CLASS,
    score_annotations,
)
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.fail_open import Answer, FailOpenScorer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

VARIABLE: Final = "LENGTHWISE_MIDDLEWARE"
"""Environment variable with the JSON of a `MiddlewareConfig`; vLLM passes no arguments."""
ALLOWED_PROXIES: Final = "FORWARDED_ALLOW_IPS"
"""Environment variable with the peers of which uvicorn believes X-Forwarded-For; vLLM has no option
for it. Empty: none, and the middleware sees the address of the connection."""
LOAD_PATH: Final = "/lengthwise/load"
GRACE_S: Final = 0.5
"""Seconds in which open answers may end after the engine's own `--shutdown-timeout`."""
_ANY_MODEL: Final = ("VLLM_SKIP_MODEL_NAME_VALIDATION", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
"""Variables with which vLLM also takes names of models that it has not loaded."""
_MOST_RECENT: Final = 1024
"""Most clients of which the permissions are kept."""
_LONGEST_KEPT: Final = 512
"""Bytes of the longest header Authorization that is kept."""
UNSCORABLE: Final = frozenset({"no_text", "budget", "invalid_prompt"})
"""Reasons for no score that a client controls: token ids, images only or too many prompts in a
request; too many requests at once; text that cannot be encoded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreConfig:
    """The scoring service and the time limits of its answers."""

    SHARED: ClassVar = ("deadline_s", "target_model", "unscored_last")
    """Settings that a ranker in the engine has too."""
    scorer: str | None = None
    """HOST:PORT of the scoring service; none: only scores sent by clients count."""
    deadline_s: float = 0.05
    """Most seconds that a request waits for its score before it is served without one."""
    late_s: float | None = 5.0
    """Further seconds in which a late score may still move a request that waits in the engine.
    None: late scores are not used."""
    target_model: str | None = None
    """Model for which the scoring service is calibrated: requests then also carry the quantiles of
    its response lengths. None: scores only."""
    max_scores_per_key: int = 512
    """Most scores in progress for one API key, or one address if there are no keys. Late scores
    count. Further requests get no score and rank last (`unscored_last`). Trusted keys have no
    limit. All clients together have at most 1,024 late scores in progress."""
    unscored_last: bool = True
    """True: a request that its client has made unscorable ranks like the highest score so far, one
    that the ranker read in part just before it. False: like the median, and by that part, as do
    requests of trusted keys."""
    open_load: bool = False
    """True: /lengthwise/load needs no key even if vLLM requires one."""

    def __post_init__(self) -> None:
        deadline_s, late_s = self.deadline_s, self.late_s
        require("deadline_s", deadline_s, 0 < deadline_s < 60, "seconds > 0 and below 60")
        holds = late_s is None or 0 < late_s < 3600
        require("late_s", late_s, holds, "seconds > 0 and below 3600, or none")
        at_least("max_scores_per_key", self.max_scores_per_key, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MiddlewareConfig(ScoreConfig):
    """Settings of the API server process."""

    security: ClientSecurity = field(default_factory=ClientSecurity)
    """TLS and token towards the scoring service."""
    classes: str | None = None
    """JSON file of user classes, see `user_classes.py`."""
    client_hints: bool = False
    """True: every client may send its own score, quantiles, class and target."""
    key_hashes: Sequence[str] = field(default_factory=list)
    """SHA-256 of vLLM's API keys, in hex; requests with other keys are not scored. Empty: every
    request is scored."""
    shares: bool = False
    """True: the engine is given a hash of each request's client, for shares between clients."""
    scores_in_engine: bool = False
    """True: the engine scores its prompts itself; without a `scorer` here."""
    made_folder: str | None = None
    """Folder that vLLM's processes share, to be removed when the API server ends."""

    def to_json(self) -> str:
        """Return the value of the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> MiddlewareConfig:
        """Read the output of `to_json`, or the path of it. Raises ConfigError for other text."""
        try:
            values = json.loads(Path(text).read_text() if text.startswith("/") else text)
            for name, one in asdict(cls()).items():
                if type(one) in (bool, list) and type(values.get(name, one)) is not type(one):
                    raise TypeError(f"{name} is no {type(one).__name__}")
            security = ClientSecurity(**values.pop("security", {}))
            return cls(security=security, **values)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{VARIABLE} is no JSON of a MiddlewareConfig ({error}); let serve-vllm set it"
            ) from error


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
class _Client:
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


@dataclass(eq=False)
class ScoreMiddleware:
    """Adds scores and classes to the bodies of generation requests."""

    app: App
    config: MiddlewareConfig
    _: KW_ONLY
    scorer: FailOpenScorer | None
    """None: requests get no score here."""
    metrics: ScoreMetrics
    late: LateScoring | None = None
    """None: a score that misses the deadline is not used."""
    classes: UserClasses = field(default_factory=UserClasses)
    reports: EngineReports | None = None
    """None: the engines share no folder with this process."""
    highest_score: float = -inf
    """Highest score so far, late ones included."""
    highest_quantiles: Mapping[float, float] = field(default_factory=dict)
    """Quantiles of the highest score."""
    scores_in_progress: Count[str] = field(default_factory=Count)
    """Client -> number of its prompts that are being scored."""
    unnamed: str | None = ""
    """Name of the first client, whose requests carry none; "": not known yet; None: all do."""

    def __post_init__(self) -> None:
        self._recent = lru_cache(_MOST_RECENT)(self._client)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path(scope) if scope["type"] in ("http", "websocket") else ""
        if path in client_bodies.UNSCORED:
            self.unnamed = None  # requests of these endpoints carry no name
            in_engine = self.config.scores_in_engine
            self.metrics.count(*(("engine",) if in_engine else ("unscored", "endpoint")))
        if scope["type"] == "lifespan":
            _bound_end(scope)
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given, is_post = _first(scope), scope["method"] == "POST"
        client = self._client_of(scope, given)
        if self.reports is not None and scope["method"] == "GET":
            if path == LOAD_PATH:
                if not (client.is_let_in or self.config.open_load):
                    await _send_json(send, {"error": "Unauthorized"}, 401)
                    return
                loads = [report["load"] for report in await self.reports.read()]
                await _send_json(send, [load for load in loads if load], 200)
                return
            if path.rstrip("/") == "/metrics":
                figures = exposition(await self.reports.read())
                self.metrics.dropped_reports.set(self.reports.drops.count)
                plain = _without(scope, b"accept", b"accept-encoding")
                await self.app(plain, receive, _appending(figures, send))
                return
        is_refused = path.startswith(client_bodies.GUARDED) and not client.is_let_in  # by vLLM
        if not is_post or is_refused:
            if path in client_bodies.SCORED and is_post:
                self.metrics.count("unscored", "no_key")
            await self.app(scope, receive, send)
            return
        if (has_priority := not HINT_HEADERS.isdisjoint(given)) and not client.may_hint:
            scope = _without(scope, *HINT_HEADERS)
        kind = client_bodies.media_type(given.get(b"content-type", b""))
        # vLLM decodes no content encoding, so a body that declares one is read as it is.
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
        is_plain = client_bodies.is_plain(content, path, required)
        is_unread = is_plain and (self._is_away() or client_bodies.has_many_ids(content))
        body = {} if is_unread else client_bodies.parse(content, required)
        if body is None or message["type"] != "http.request":
            # The server answers such a body as it always does.
            if prompts_of is not None and message["type"] == "http.request":
                self.metrics.count("unscored", "unreadable")
            self._count_hints(has_priority, client)
            await self.app(scope, _replay(message, receive), send)
            return
        is_changed = bool(body or has_priority) and self._drop_hints(body, has_priority, client)
        added: dict[str, Any] = {}
        if prompts_of is not None:
            user_class = self.classes.of(client.token, scope["headers"], _peer(scope))
            added = self.classes.annotations(user_class)
            if self.unnamed == "":
                self.unnamed = client.share
            if self.config.shares and client.share != self.unnamed:
                added[CLIENT] = client.share
            prompts = () if self.scorer is None else prompts_of(body)
            if _has_model(scope, body.get("model")):
                added |= await self._score(body, prompts, client)
            else:
                self.metrics.count("unscored", "unknown_model")
        if is_changed or added:
            content = client_bodies.attached(content, body, added, path, is_changed=is_changed)
            scope = _without(scope, b"content-length", b"transfer-encoding")
            scope["headers"].append((b"content-length", str(len(content)).encode()))
            message = {"type": "http.request", "body": content, "more_body": False}
        key = added.get(REQUEST_KEY)
        receive = _replay(message, receive)
        if self.late is None or key is None:
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, receive, _stopping(self.late, key, send))
        finally:
            self.late.stop(key)

    async def _serve_form(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Hints cannot be removed from a form.
        message, content = await _read_body(receive)
        if client_bodies.form_may_hold_hints(_first(scope).get(b"content-type", b""), content):
            self.metrics.client_hints.labels("refused").inc()
            said = "the form holds lengthwise_ hints or names a charset; send it without these"
            await _send_json(send, {"error": {"message": said, "code": 400}}, 400)
            return
        await self.app(scope, _replay(message, receive), send)

    def _client_of(self, scope: Scope, given: Mapping[bytes, bytes]) -> _Client:
        address = self.classes.client_address(scope["headers"], _peer(scope)) or ""
        authorization = given.get(b"authorization", b"")
        is_short = len(authorization) <= _LONGEST_KEPT
        return (self._recent if is_short else self._client)(authorization, address)

    def _client(self, authorization: bytes, address: str) -> _Client:
        found, classes = hash_of(token := bearer_token(authorization)), self.classes
        # Hashes are compared, not keys: the time taken reveals nothing of a key.
        is_listed, is_trusted = found in self.config.key_hashes, classes.trusts(token)
        if not (is_listed or is_trusted or token in classes.api_keys):
            found = network_of(address)
        return _Client(
            token=token,
            name=found,
            share=hash_of(found)[:16],
            is_let_in=is_listed or not self.config.key_hashes,
            may_hint=self.config.client_hints or is_trusted,
            is_trusted=is_trusted,
        )

    def _drop_hints(self, body: dict[str, Any], has_priority: bool, client: _Client) -> bool:
        """Remove the client's hints that it may not send; return whether there were any."""
        own = client_bodies.own_hints(body)
        in_body = body.get(PRIORITY) not in (None, 0)
        self._count_hints(bool(own) or in_body or has_priority, client)
        if client.may_hint:
            has_class = client.token in self.classes.api_keys
            return client_bodies.drop_hints(body, {USER_CLASS, TBT_S} if has_class else ())
        if in_body:
            del body[PRIORITY]
        return client_bodies.drop_hints(body, FROM_CLIENTS) or in_body

    def _count_hints(self, has_any: bool, client: _Client) -> None:
        if has_any:
            self.metrics.client_hints.labels("kept" if client.may_hint else "dropped").inc()

    async def _score(
        self, body: Mapping[str, Any], prompts: Prompts, client: _Client
    ) -> dict[str, Any]:
        """Return the annotations of a request's score, or the key of a score that may be late."""
        if body and SCORE in client_bodies.own_hints(body):
            self.metrics.count("explicit")
            return {}
        if self.scorer is None:
            in_engine = self.config.scores_in_engine
            self.metrics.count(*(("engine",) if in_engine else ("unscored", "no_scorer")))
            return {}
        in_progress = self.scores_in_progress[client.name] + len(prompts)
        is_over = in_progress > self.config.max_scores_per_key and not client.is_trusted
        if self._is_away():
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

    def _is_away(self) -> bool:
        """Return whether no service is there, or none within the time of a late score."""
        return self.scorer is None or (self.scorer.away_s or 0.0) > (self.config.late_s or 0.0)

    def _without_score(self, reason: str, client: _Client) -> dict[str, Any]:
        is_last = reason in UNSCORABLE and self.config.unscored_last and not client.is_trusted
        is_away = self.scorer is not None and self.scorer.away_s  # then by arrival
        if is_away or not is_last or self.highest_score == -inf:
            return {}
        return score_annotations(self.highest_score, self.highest_quantiles)

    async def _request_score(
        self, scorer: FailOpenScorer, prompts: Prompts, client: _Client
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
        self, scorer: FailOpenScorer, prompts: Prompts, client: _Client
    ) -> asyncio.Future[Answer]:
        """Request a score; until the answer the prompts are in progress."""
        if away_s := scorer.away_s:
            away: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            away.set_result(Answer(None, "breaker_open", away_s))
            return away

        def answered(_: object) -> None:
            self.scores_in_progress[client.name] -= len(prompts)
            if not self.scores_in_progress[client.name]:
                del self.scores_in_progress[client.name]

        self.scores_in_progress[client.name] += len(prompts)
        asked = asyncio.ensure_future(self._highest(scorer, prompts, client))
        asked.add_done_callback(answered)
        return asked

    async def _highest(self, scorer: FailOpenScorer, prompts: Prompts, client: _Client) -> Answer:
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


class VllmScores(ScoreMiddleware):
    """The middleware for vLLM's `--middleware`, configured by `LENGTHWISE_MIDDLEWARE`."""

    def __init__(self, app: App) -> None:
        config = MiddlewareConfig.from_json(os.environ.get(VARIABLE, "{}"))
        if os.environ.get(ALLOWED_PROXIES) != "":
            raise ConfigError(f"{ALLOWED_PROXIES} is not empty; start vLLM with {ALLOWED_PROXIES}=")
        folder = os.environ.get(SHARED_FOLDER)
        if config.made_folder is not None:
            atexit.register(shutil.rmtree, config.made_folder, ignore_errors=True)
        metrics, late_s = ScoreMetrics(), config.late_s if folder else None
        scorer = late = None
        if config.scorer is not None:
            scorer = FailOpenScorer(
                config.scorer,
                budget_s=config.deadline_s + (late_s or 0.0),
                target_model=config.target_model,
                security=config.security,
            )
            if folder and late_s is not None:
                late = LateScoring(Path(folder), late_s=late_s, count=metrics.count_late)
        super().__init__(
            app,
            config,
            scorer=scorer,
            metrics=metrics,
            late=late,
            classes=read_user_classes(Path(config.classes)) if config.classes else UserClasses(),
            reports=EngineReports(Path(folder)) if folder else None,
            # Of several API servers each would have a first client of its own.
            unnamed=None if "PROMETHEUS_MULTIPROC_DIR" in os.environ else "",
        )


def hash_of(key: str) -> str:
    """Return an API key as in `MiddlewareConfig.key_hashes`: SHA-256, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def _peer(scope: Scope) -> str | None:
    """Return the address of a connection; None: unknown, as on a Unix socket."""
    return (scope.get("client") or (None,))[0]


def _has_model(scope: Scope, name: object) -> bool:
    """Return False if vLLM has no model of that name, and so refuses the request."""
    if not name or not isinstance(name, str):
        return True
    models = getattr(getattr(scope.get("app"), "state", None), "openai_serving_models", None)
    if models is None:
        return True
    is_open = any(os.environ.get(each, "0").lower() in ("1", "true") for each in _ANY_MODEL)
    return is_open or models.is_base_model(name) or name in models.lora_requests


def _bound_end(scope: Scope) -> None:
    """Bound the wait of vLLM's HTTP server for open answers, once its engine has stopped."""
    # Without its limit, a request that met the end of the engine holds the server for ever.
    server = getattr(getattr(scope.get("app"), "state", None), "server", None)
    if server is not None and server.config.timeout_graceful_shutdown is None:
        server.config.timeout_graceful_shutdown = GRACE_S


async def _send_json(send: Send, content: object, status: int) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


def _first(scope: Scope) -> dict[bytes, bytes]:
    """Return the first value of each header, as vLLM reads them."""
    return dict(reversed(scope["headers"]))


def _path(scope: Scope) -> str:
    path, root = scope["path"], scope.get("root_path", "")
    return str(path.removeprefix(root) if path.startswith(f"{root}/") else path)


async def _read_body(receive: Receive) -> tuple[Message, bytes]:
    """Return a body in one message and its content, or the message of a client that has left."""
    parts: list[bytes] = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            content = b"".join(parts)
            return {"type": "http.request", "body": content, "more_body": False}, content
    return message, b""


def _replay(message: Message, receive: Receive) -> Receive:
    pending = [message]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def _without(scope: Scope, *names: bytes) -> Scope:
    return {**scope, "headers": [each for each in scope["headers"] if each[0] not in names]}


def _appending(content: bytes, send: Send) -> Send:
    """Return a `send` that adds `content` to the end of the answer."""

    async def appending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = _without(message, b"content-length")
        elif not message.get("more_body"):
            message = {**message, "body": message.get("body", b"") + content}
        await send(message)

    return appending


def _stopping(late: LateScoring, key: str, send: Send) -> Send:
    """Return a `send` that cancels a late score at the first bytes of the answer."""

    async def stopping(message: Message) -> None:
        if message.get("body"):
            late.stop(key)
        await send(message)

    return stopping
