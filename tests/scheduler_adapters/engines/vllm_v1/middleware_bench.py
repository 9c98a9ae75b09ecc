"""The middleware between a client and a server that keeps what reached it, without a network."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from scheduler_adapters.engines import score_channel
from scheduler_adapters.engines.engine_sockets import EngineReports
from scheduler_adapters.engines.user_classes import UserClasses
from scheduler_adapters.engines.vllm_v1.middleware import MiddlewareConfig, ScoreMiddleware
from scheduler_adapters.engines.vllm_v1.request_scores import RequestScores, ScoreMetrics
from scoring_service.client import Score
from scoring_service.client.fail_open import Answer

CLASSES = UserClasses(
    tbt_s={"chat": 0.05, "batch": None},
    api_keys={"sk-1": "chat"},
    header="X-User-Class",
    trusted_proxies=("10.0.0.0/8", "::1"),
    default="batch",
    trusted_keys=("sk-gate",),
)
CHAT = {"lengthwise_class": "chat", "lengthwise_tbt_s": 0.05}
BATCH = {"lengthwise_class": "batch"}
HINTS = {
    "lengthwise_score": -1e9,
    "lengthwise_quantiles": [0.5, 1.0],
    "lengthwise_class": "chat",
    "lengthwise_tbt_s": 0.001,
    "lengthwise_request_key": "0" * 32,
}
HINTED = {"vllm_xargs": HINTS}
"""Hints forged by a client."""
COMPLETIONS = "/v1/completions"


def key(name: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {name}"}}


class FakeScorer:
    """Scores a prompt by its length, unless it has something else to answer."""

    away_s: float | None = None

    def __init__(
        self, outcome: str = "scored", quantiles: Mapping[float, float] | None = None
    ) -> None:
        self.outcome = outcome
        self.quantiles = quantiles or {}
        self.asked: list[str] = []

    def out_of_time(self) -> None:
        pass

    async def answers_within(self, seconds: float) -> bool:
        return self.outcome not in score_channel.RETRIED

    async def ask_async(self, prompt: str, client: str = "") -> Answer:
        self.asked.append(prompt)
        if not prompt.isprintable():
            return Answer(None, "invalid_prompt")
        if self.outcome != "scored":
            return Answer(None, self.outcome)
        score = Score(
            value=float(len(prompt)),
            revision="r",
            prompt_tokens=1,
            truncated=prompt.startswith("truncated"),
            quantiles=self.quantiles,
        )
        return Answer(score, "scored")


class Server:
    """Reads the whole body, then streams three chunks."""

    def __init__(self) -> None:
        self.content = b""
        self.headers: dict[bytes, bytes] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers = dict(scope["headers"])
        parts = []
        while (message := await receive())["type"] == "http.request":
            parts.append(message["body"])
            if not message["more_body"]:
                break
        self.content = b"".join(parts)
        self.last = message["type"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for chunk in (b"a", b"b", b"c"):
            await send({"type": "http.response.body", "body": chunk, "more_body": chunk != b"c"})


class Bench:
    """A middleware with a fake server behind it, and what it counted."""

    def __init__(
        self,
        scorer: Any,
        classes: UserClasses | None = None,
        reports: EngineReports | None = None,
        **settings: Any,
    ) -> None:
        self.server = Server()
        self.registry = CollectorRegistry()
        # A busy machine must not let a score miss its deadline.
        config = MiddlewareConfig(**{"deadline_s": 59.0} | settings)
        metrics = ScoreMetrics(self.registry)
        self.scores = RequestScores(config, scorer, metrics, in_engine=config.scores_in_engine)
        self.middleware = ScoreMiddleware(
            self.server,
            config,
            scores=self.scores,
            classes=classes or UserClasses(),
            reports=reports,
        )

    def configure(self, **settings: Any) -> None:
        self.middleware.config = replace(self.middleware.config, **settings)
        self.scores.config = self.middleware.config

    def post(self, body: Any, path: str = COMPLETIONS, **settings: Any) -> dict[str, Any]:
        """Send `body` in pieces; the body that reached the server."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        asyncio.run(self.call(content, path, **settings))
        return json.loads(self.server.content)

    def hints(self, body: Any, path: str = COMPLETIONS, **settings: Any) -> dict[str, Any]:
        """Send `body`; the hints that reached the server."""
        return self.post(body, path, **settings).get("vllm_xargs") or {}

    async def call(
        self,
        content: bytes,
        path: str = COMPLETIONS,
        headers: dict[str, str] | None = None,
        content_type: str = "application/json; charset=utf-8",
        pieces: int = 3,
        client: tuple[str, int] | None = ("10.1.2.3", 5),
        more_headers: Sequence[tuple[bytes, bytes]] = (),
        method: str = "POST",
        app: Any = None,
    ) -> list[Any]:
        """Send a body in pieces; the messages of the answer."""
        given = {"content-type": content_type, "content-length": str(len(content))}
        given |= headers or {}
        size = len(content) // pieces + 1
        waiting = [
            {
                "type": "http.request",
                "body": content[number * size : (number + 1) * size],
                "more_body": number < pieces - 1,
            }
            for number in range(pieces)
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        encoded = ((name.lower().encode(), value.encode()) for name, value in given.items())
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [*encoded, *more_headers],
            "client": client,
            "app": app,
        }
        await self.middleware(scope, receive, send)
        return sent

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"lengthwise_{name}", labels) or 0.0

    def count(self, outcome: str, reason: str = "") -> float:
        return self.sample("requests_total", outcome=outcome, reason=reason)

    def hints_counted(self, outcome: str) -> float:
        return self.sample("client_hints_total", outcome=outcome)
