"""Scores for unmodified clients: ASGI middleware for vLLM's OpenAI server.

The middleware adds score, length quantiles, class and TBT target to the body of each generation
request. Hints and priorities of a client are dropped, unless its key is trusted (`user_classes.py`)
or `client_hints` is true. Answers, streams included, pass unchanged. `/lengthwise/load` returns the
newest load report of each engine, for a router.

`serve-vllm` starts vLLM with it. By hand: set `LENGTHWISE_MIDDLEWARE` to the JSON of a
`MiddlewareConfig` and `FORWARDED_ALLOW_IPS` to nothing, and add
`--middleware scheduler_adapters.engines.vllm_v1.middleware.VllmScores`. Imports no engine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from lengthwise.addresses import network_of
from lengthwise.errors import ConfigError
from lengthwise.settings import settings
from scheduler_adapters.engines.engine_metrics import exposition
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER, EngineReports
from scheduler_adapters.engines.score_channel import LateScoring
from scheduler_adapters.engines.user_classes import UserClasses, bearer_token, read_user_classes
from scheduler_adapters.engines.vllm_v1 import asgi, client_bodies
from scheduler_adapters.engines.vllm_v1.asgi import App, Receive, Scope, Send
from scheduler_adapters.engines.vllm_v1.client_bodies import HINT_HEADERS, OPERATORS, PRIORITY
from scheduler_adapters.engines.vllm_v1.request_scores import (
    Client,
    RequestScores,
    ScoreConfig,
    ScoreMetrics,
)
from scheduler_adapters.planner import request_annotations as hints
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.fail_open import FailOpenScorer

VARIABLE: Final = "LENGTHWISE_MIDDLEWARE"
"""Environment variable with the JSON of a `MiddlewareConfig`; vLLM passes no arguments."""
ALLOWED_PROXIES: Final = "FORWARDED_ALLOW_IPS"
"""Environment variable with the peers of which uvicorn believes X-Forwarded-For; vLLM has no option
for it. Empty: none, and the middleware sees the address of the connection."""
LOAD_PATH: Final = "/lengthwise/load"
_ANY_MODEL: Final = ("VLLM_SKIP_MODEL_NAME_VALIDATION", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
"""Variables with which vLLM also takes names of models that it has not loaded."""
_REQUEST_ID: Final = b"x-request-id"
"""Header of a request's id, with which the ids of all requests begin that vLLM makes for it."""
_MOST_RECENT: Final = 1024
"""Most clients of which the permissions are kept."""
_LONGEST_KEPT: Final = 512
"""Bytes of the longest header Authorization that is kept."""


@settings
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
            return cls(security=ClientSecurity(**values.pop("security", {})), **values)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{VARIABLE} is no JSON of a MiddlewareConfig ({error}); let serve-vllm set it"
            ) from error


@dataclass(eq=False)
class ScoreMiddleware:
    """Adds scores and classes to the bodies of generation requests."""

    app: App
    config: MiddlewareConfig
    _: KW_ONLY
    scores: RequestScores
    classes: UserClasses = field(default_factory=UserClasses)
    reports: EngineReports | None = None
    """None: the engines share no folder with this process."""

    def __post_init__(self) -> None:
        self._recent = lru_cache(_MOST_RECENT)(self._client)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = asgi.path_of(scope) if scope["type"] in ("http", "websocket") else ""
        if path in client_bodies.UNSCORED:
            self.scores.count_elsewhere("endpoint")
        if scope["type"] == "lifespan":
            asgi.bound_end(scope)
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given, is_post = asgi.first_headers(scope), scope["method"] == "POST"
        client = self._client_of(scope, given)
        if self.reports is not None and scope["method"] == "GET":
            if path == LOAD_PATH:
                if not (client.is_let_in or self.config.open_load):
                    await asgi.send_json(send, {"error": "Unauthorized"}, 401)
                    return
                loads = [report["load"] for report in await self.reports.read()]
                await asgi.send_json(send, [load for load in loads if load], 200)
                return
            if path.rstrip("/") == "/metrics":
                figures = exposition(await self.reports.read())
                self.scores.metrics.dropped_reports.set(self.reports.drops.count)
                plain = asgi.without(scope, b"accept", b"accept-encoding")
                await self.app(plain, receive, asgi.appending(figures, send))
                return
        is_refused = path.startswith(client_bodies.GUARDED) and not client.is_let_in  # by vLLM
        if not is_post or is_refused:
            if path in client_bodies.SCORED and is_post:
                self.scores.metrics.count("unscored", "no_key")
            await self.app(scope, receive, send)
            return
        if (has_priority := not HINT_HEADERS.isdisjoint(given)) and not client.may_hint:
            scope = asgi.without(scope, *HINT_HEADERS)
        if hints.HINT_START in given.get(_REQUEST_ID, b"").decode("latin-1"):
            scope = asgi.without(scope, _REQUEST_ID)  # a form that is ours
        if path not in client_bodies.SCORED:
            scope = self._naming(scope, client)
        kind = client_bodies.media_type(given.get(b"content-type", b""))
        # vLLM decodes no content encoding, so a body that declares one is read as it is.
        if kind == b"application/json":
            await self._serve_json(client, path, has_priority, scope, receive, send)
        elif kind.startswith(b"multipart/") and not client.may_hint:
            await self._serve_form(given[b"content-type"], scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _serve_json(
        self,
        client: Client,
        path: str,
        has_priority: bool,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        message, content = await asgi.read_body(receive)
        prompts_of, required = client_bodies.SCORED.get(path, (None, ()))
        is_plain = client_bodies.is_plain(content, path, required)
        is_unread = is_plain and (self.scores.is_away or client_bodies.has_many_ids(content))
        body = {} if is_unread else client_bodies.parse(content, required)
        if body is None or message["type"] != "http.request":
            # The server answers such a body as it always does.
            if prompts_of is not None and message["type"] == "http.request":
                self.scores.metrics.count("unscored", "unreadable")
            self._count_hints(has_priority, client.may_hint)
            await self.app(scope, asgi.replay(message, receive), send)
            return
        is_changed = bool(body or has_priority) and self._drop_hints(body, has_priority, client)
        added: dict[str, Any] = {}
        if body.get(client_bodies.BEAMS):
            scope = self._naming(scope, client)
        if prompts_of is not None:
            added = self.classes.annotations(self._class_of(scope, client))
            if self.config.shares:
                added[hints.CLIENT] = client.share
            prompts = () if self.scores.scorer is None else prompts_of(body)
            if _has_model(scope, body.get("model")):
                added |= await self.scores.annotations(body, prompts, client)
            else:
                self.scores.metrics.count("unscored", "unknown_model")
        if is_changed or added:
            content = client_bodies.attached(content, body, added, path, is_changed=is_changed)
            scope = asgi.without(scope, b"content-length", b"transfer-encoding")
            scope["headers"].append((b"content-length", str(len(content)).encode()))
            message = {"type": "http.request", "body": content, "more_body": False}
        receive, key = asgi.replay(message, receive), added.get(hints.REQUEST_KEY)
        with self.scores.until_answered(key, send) as send:
            await self.app(scope, receive, send)

    async def _serve_form(self, kind: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        # Hints cannot be removed from a form.
        message, content = await asgi.read_body(receive)
        if client_bodies.form_may_hold_hints(kind, content):
            self.scores.metrics.client_hints.labels("refused").inc()
            said = "the form holds hints, a transfer or a charset; send it without these"
            await asgi.send_json(send, {"error": {"message": said, "code": 400}}, 400)
            return
        await self.app(scope, asgi.replay(message, receive), send)

    def _client_of(self, scope: Scope, given: Mapping[bytes, bytes]) -> Client:
        address = self.classes.client_address(scope["headers"], asgi.peer_of(scope)) or ""
        authorization = given.get(b"authorization", b"")
        is_short = len(authorization) <= _LONGEST_KEPT
        return (self._recent if is_short else self._client)(authorization, address)

    def _client(self, authorization: bytes, address: str) -> Client:
        found, classes = hash_of(token := bearer_token(authorization)), self.classes
        # Hashes are compared, not keys: the time taken reveals nothing of a key.
        is_listed, is_trusted = found in self.config.key_hashes, classes.trusts(token)
        if not (is_listed or is_trusted or token in classes.api_keys):
            found = network_of(address)
        return Client(
            token=token,
            name=found,
            share=hash_of(found)[:16],
            is_let_in=is_listed or not self.config.key_hashes,
            may_hint=self.config.client_hints or is_trusted,
            is_trusted=is_trusted,
        )

    def _class_of(self, scope: Scope, client: Client) -> str | None:
        return self.classes.of(client.token, scope["headers"], asgi.peer_of(scope))

    def _naming(self, scope: Scope, client: Client) -> Scope:
        """Return the scope with an id by which vLLM's own requests for it are charged to it."""
        if not self.config.shares:
            return scope
        own = asgi.first_headers(scope).get(_REQUEST_ID, token_hex(16).encode())
        mark = hints.id_mark(client.share, self._class_of(scope, client))
        others = asgi.without(scope, _REQUEST_ID)["headers"]
        return {**scope, "headers": [*others, (_REQUEST_ID, own + mark.encode())]}

    def _drop_hints(self, body: dict[str, Any], has_priority: bool, client: Client) -> bool:
        """Remove what the client may not send; return whether there was any."""
        names = set() if client.is_trusted else OPERATORS - {PRIORITY}
        if not client.may_hint:
            names |= {*hints.FROM_CLIENTS, PRIORITY}
        elif client.token in self.classes.api_keys:
            names |= {hints.USER_CLASS, hints.TBT_S}
        held = client_bodies.held(body)
        self._count_hints(bool(held) or has_priority, client.may_hint and not held & names)
        return client_bodies.drop(body, names)

    def _count_hints(self, has_any: bool, are_kept: bool) -> None:
        if has_any:
            self.scores.metrics.client_hints.labels("kept" if are_kept else "dropped").inc()


class VllmScores(ScoreMiddleware):
    """The middleware for vLLM's `--middleware`, configured by `LENGTHWISE_MIDDLEWARE`."""

    def __init__(self, app: App) -> None:
        config = MiddlewareConfig.from_json(os.environ.get(VARIABLE, "{}"))
        if os.environ.get(ALLOWED_PROXIES) != "":
            raise ConfigError(f"{ALLOWED_PROXIES} is not empty; start vLLM with {ALLOWED_PROXIES}=")
        folder = os.environ.get(SHARED_FOLDER)
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
            scores=RequestScores(config, scorer, metrics, late, in_engine=config.scores_in_engine),
            classes=read_user_classes(Path(config.classes)) if config.classes else UserClasses(),
            reports=EngineReports(Path(folder)) if folder else None,
        )


def hash_of(key: str) -> str:
    """Return an API key as in `MiddlewareConfig.key_hashes`: SHA-256, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def _has_model(scope: Scope, name: object) -> bool:
    """Return False if vLLM has no model of that name, and so refuses the request."""
    models = getattr(getattr(scope.get("app"), "state", None), "openai_serving_models", None)
    if models is None or not name or not isinstance(name, str):
        return True
    is_open = any(os.environ.get(each, "0").lower() in ("1", "true") for each in _ANY_MODEL)
    return is_open or models.is_base_model(name) or name in models.lora_requests
