"""The middleware in front of a server that echoes what reached it."""

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry

from lengthwise.errors import ConfigError
from lengthwise.tables.prompt_text import MAX_CHARACTERS
from scheduler_adapters.engines import score_channel
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER, EngineReports, report_server
from scheduler_adapters.engines.score_channel import LateScoring
from scheduler_adapters.engines.user_classes import UserClasses
from scheduler_adapters.engines.vllm_v1 import middleware
from scheduler_adapters.engines.vllm_v1.client_bodies import HINT_HEADERS, MOST_PROMPTS
from scheduler_adapters.engines.vllm_v1.middleware import (
    ALLOWED_PROXIES,
    UNSCORABLE,
    VARIABLE,
    MiddlewareConfig,
    ScoreMetrics,
    ScoreMiddleware,
    VllmScores,
    hash_of,
)
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.workload.requests import make_requests
from scoring_service.client import Score, fail_open
from scoring_service.client.breaker import CircuitBreaker
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.fail_open import Answer, FailOpenScorer
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig

CLASSES = UserClasses(
    tbt_s={"chat": 0.05, "batch": None},
    api_keys={"sk-1": "chat"},
    header="X-User-Class",
    trusted_proxies=("10.0.0.0/8", "::1"),
    default="batch",
    trusted_keys=("sk-gate",),
)


class FakeScorer:
    """Scores a prompt by its length, unless it has something else to answer."""

    def __init__(
        self, outcome: str = "scored", quantiles: Mapping[float, float] | None = None
    ) -> None:
        self.outcome = outcome
        self.quantiles = quantiles or {}
        self.asked: list[str] = []

    away_s: float | None = None

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
        self.middleware = ScoreMiddleware(
            self.server,
            # A busy machine must not let a score miss its deadline.
            MiddlewareConfig(**{"deadline_s": 59.0} | settings),
            scorer=scorer,
            metrics=ScoreMetrics(self.registry),
            classes=classes or UserClasses(),
            reports=reports,
        )

    def configure(self, **settings: Any) -> None:
        self.middleware.config = replace(self.middleware.config, **settings)

    def post(self, body: Any, path: str = "/v1/completions", **settings: Any) -> dict[str, Any]:
        """Send `body` in pieces; the body that reached the server."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        asyncio.run(self.call(content, path, **settings))
        return json.loads(self.server.content)

    async def call(
        self,
        content: bytes,
        path: str,
        headers: dict[str, str] | None = None,
        content_type: str = "application/json; charset=utf-8",
        pieces: int = 3,
        client: tuple[str, int] | None = ("10.1.2.3", 5),
        more_headers: Sequence[tuple[bytes, bytes]] = (),
        method: str = "POST",
        app: Any = None,
    ) -> list[Any]:
        given = {"content-type": content_type, "content-length": str(len(content))}
        given |= headers or {}
        size = len(content) // pieces + 1
        incoming = [content[at : at + size] for at in range(0, pieces * size, size)]
        waiting = [
            {"type": "http.request", "body": piece, "more_body": number < pieces - 1}
            for number, piece in enumerate(incoming)
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [
                *((k.lower().encode(), v.encode()) for k, v in given.items()),
                *more_headers,
            ],
            "client": client,
            "app": app,
        }
        await self.middleware(scope, receive, send)
        return sent

    def count(self, outcome: str, reason: str = "") -> float:
        labels = {"outcome": outcome, "reason": reason}
        return self.registry.get_sample_value("lengthwise_requests_total", labels) or 0.0


def test_a_completion_carries_its_score_and_nothing_else_changes():
    bench = Bench(FakeScorer())
    sent = {"model": "m", "prompt": "hello", "temperature": 0.1, "logit_bias": {"5": 1}}
    assert bench.post(sent) == sent | {"vllm_xargs": {"lengthwise_score": 5.0}}
    assert int(bench.server.headers[b"content-length"]) == len(bench.server.content)
    assert bench.count("scored") == 1


def test_quantiles_travel_with_the_score_unless_the_client_sent_its_own():
    bench = Bench(FakeScorer(quantiles={0.9: 640.0, 0.5: 210.0}))
    reached = bench.post({"prompt": "hello"})["vllm_xargs"]
    assert reached == {"lengthwise_score": 5.0, "lengthwise_quantiles": [0.5, 210.0, 0.9, 640.0]}
    own = {"lengthwise_quantiles": [0.5, 1.0]}
    bench = Bench(FakeScorer(quantiles={0.9: 640.0, 0.5: 210.0}), client_hints=True)
    reached = bench.post({"prompt": "hello", "vllm_xargs": own})["vllm_xargs"]
    assert reached == own | {"lengthwise_score": 5.0}


HINTS = {
    "lengthwise_score": -1e9,
    "lengthwise_quantiles": [0.5, 1.0],
    "lengthwise_class": "chat",
    "lengthwise_tbt_s": 0.001,
    "lengthwise_request_key": "0" * 32,
}


def hints_counted(bench: Bench, outcome: str) -> float:
    name = "lengthwise_client_hints_total"
    return bench.registry.get_sample_value(name, {"outcome": outcome}) or 0.0


@pytest.mark.parametrize("encoding", [None, "identity", "gzip"])
def test_hints_of_a_client_are_dropped_and_counted(encoding):
    bench = Bench(FakeScorer(), classes=CLASSES)
    headers = {} if encoding is None else {"Content-Encoding": encoding}
    sent = {"prompt": "hello", "vllm_xargs": HINTS | {"other": "x"}}
    reached = bench.post(sent, headers=headers)["vllm_xargs"]
    assert reached == {"other": "x", "lengthwise_score": 5.0, "lengthwise_class": "batch"}
    assert (hints_counted(bench, "dropped"), hints_counted(bench, "kept")) == (1, 0)
    assert bench.count("scored") == 1
    assert bench.count("explicit") == 0


@pytest.mark.parametrize("key", [None, "Bearer sk-wrong", "Basic sk-right", "Bearer"])
def test_a_request_that_vllm_refuses_costs_no_score(key):
    scorer = FakeScorer()
    bench = Bench(scorer, key_hashes=[hash_of("sk-other"), hash_of("sk-right")])
    sent = {"prompt": "hello", "vllm_xargs": HINTS}
    assert bench.post(sent, headers={} if key is None else {"Authorization": key}) == sent
    assert scorer.asked == []
    assert bench.count("unscored", "no_key") == 1
    bench.post({"prompt": "hello"}, headers={"Authorization": "Bearer sk-right"})
    assert scorer.asked == ["hello"]


@pytest.mark.parametrize(
    ("name", "variable", "is_scored"),
    [
        ("served", "0", True),
        ("adapter", "0", True),
        (None, "0", True),
        ("none", "0", False),
        ("none", "1", True),
    ],
)
def test_a_request_for_an_unknown_model_costs_no_score(name, variable, is_scored, monkeypatch):
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", variable)
    models = SimpleNamespace(is_base_model="served".__eq__, lora_requests={"adapter": 1})
    bench = Bench(scorer := FakeScorer())
    app = SimpleNamespace(state=SimpleNamespace(openai_serving_models=models))
    bench.post({"prompt": "hello", "model": name}, app=app)
    assert scorer.asked == ["hello"] * is_scored
    assert bench.count("unscored", "unknown_model") == (not is_scored)


MESSAGES = [{"role": "user", "content": "hello"}]
HINTED = {"vllm_xargs": HINTS}
"""Hints forged by a client."""


@pytest.mark.parametrize(
    ("path", "sent", "score"),
    [
        ("/v1/completions", {"prompt": "hello"} | HINTED, 5.0),
        ("/v1/chat/completions", {"messages": MESSAGES} | HINTED, 5.0),
        ("/v1/chat/completions/batch", {"messages": [MESSAGES]} | HINTED, 5.0),
        ("/v1/chat/completions/batch", {"messages": [MESSAGES, MESSAGES]} | HINTED, 5.0),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5} | HINTED, 5.0),
        ("/v1/responses", {"input": "hello"} | HINTED, 5.0),
        ("/invocations", {"messages": MESSAGES} | HINTED, 5.0),
        ("/invocations", {"prompt": "hello"} | HINTED, 5.0),
        ("/v1/completions", {"prompt": [1, 2]} | HINTED, None),
        ("/v1/completions", {"prompt": ["hello", "b"]} | HINTED, 5.0),
        ("/inference/v1/generate", {"sampling_params": {"extra_args": HINTS, "n": 1}}, None),
    ],
)
def test_no_endpoint_that_generates_lets_hints_or_a_priority_through(path, sent, score):
    bench = Bench(FakeScorer(), classes=CLASSES)
    chosen = {"X-Vllm-Priority": "-7", "X-data-parallel-rank": "1"}
    reached = bench.post(sent | {"priority": -7, "stream": True}, path, headers=chosen)
    assert reached.pop("stream")
    assert "priority" not in reached
    assert not bench.server.headers.keys() & HINT_HEADERS
    hints = (reached.get("sampling_params", {}).get("extra_args") or reached["vllm_xargs"]).items()
    ours = {"lengthwise_class": "batch"} | ({} if score is None else {"lengthwise_score": score})
    assert {key: value for key, value in hints if key.startswith("lengthwise_")} == ours
    assert (hints_counted(bench, "dropped"), hints_counted(bench, "kept")) == (1, 0)
    assert bench.count("unscored", "no_text") == (score is None)
    assert bench.count("scored") == (score is not None)


@pytest.mark.parametrize("path", ["/pooling", "/v1/embeddings", "/cohere/v2/chat", "/of/a/plugin"])
def test_hints_and_priorities_are_dropped_at_endpoints_that_nobody_knows(path):
    bench = Bench(FakeScorer())
    sent = {"input": "x", "sampling_params": {"extra_args": HINTS | {"a": 1}}, "priority": -1}
    assert bench.post(sent | {"vllm_xargs": HINTS}, path) == {
        "input": "x",
        "sampling_params": {"extra_args": {"a": 1}},
        "vllm_xargs": {},
    }
    assert hints_counted(bench, "dropped") == 1
    assert bench.count("unscored", "endpoint") == (path == "/cohere/v2/chat")


def test_a_trusted_key_may_send_a_priority_and_choose_an_engine():
    bench = Bench(FakeScorer(), classes=CLASSES)
    chosen = {"X-Vllm-Priority": "-7", "X-data-parallel-rank": "1"}
    headers = {"Authorization": "Bearer sk-gate"} | chosen
    assert bench.post({"prompt": "x", "priority": -7}, headers=headers)["priority"] == -7
    assert bench.server.headers.keys() >= HINT_HEADERS
    assert hints_counted(bench, "kept") == 1


def test_a_header_alone_and_a_priority_like_everybodys_leave_the_body_as_it_was():
    bench = Bench(None)
    sent = b'{"prompt":  "hello", "priority": 0}'
    bench.post(sent, headers={"X-Vllm-Priority": "-7"})
    assert bench.server.content == sent
    assert b"x-vllm-priority" not in bench.server.headers
    assert hints_counted(bench, "dropped") == 1


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize(
    "spelled",
    [
        b'{"vllm_xargs": {"lengthwise_score": -1}}',
        rb'{"vllm_xargs": {"\u006cengthwise_score": -1}}',
        rb'{"vllm_xargs": {"lengthwise\u005Fscore": -1}}',
        b'{"vllm_xargs": {"lengthwise_score": -1}, "vllm_xargs": {"lengthwise_score": -2}}',
        '{"vllm_xargs": {"lengthwise_score": -1}}'.encode("utf-16"),
        b'\xef\xbb\xbf{"vllm_xargs": {"lengthwise_score": -1}}',
        rb'{"priorit\u0079": -5}',
    ],
)
def test_a_large_body_and_a_strange_spelling_hide_no_hint(spelled, size):
    bench = Bench(FakeScorer())
    scored = ("scored", "cut" if size > MAX_CHARACTERS else "")
    is_wide = b"\0" in spelled
    end = "}".encode("utf-16-le") if is_wide else b"}"
    padding = ', "prompt": "' + "x" * size + '"}'
    padded = spelled.removesuffix(end) + padding.encode("utf-16-le" if is_wide else "ascii")
    for path in ("/v1/completions", "/pooling"):
        reached = bench.post(padded, path)
        assert "lengthwise_score" not in (reached.get("vllm_xargs") or {}) or bench.count(*scored)
        assert "priority" not in reached
    assert hints_counted(bench, "dropped") == 2
    assert bench.count(*scored) == 1


@pytest.mark.parametrize("has_classes", [False, True])
@pytest.mark.parametrize("scorer", [None, FakeScorer()])
def test_large_lists_of_token_ids_are_not_parsed(monkeypatch, scorer, has_classes):
    bench = Bench(scorer, classes=CLASSES if has_classes else None)
    sent = {"model": "m", "prompt": list(range(100_000)), "max_tokens": 1}
    with monkeypatch.context() as patch:
        patch.setattr(middleware.client_bodies, "parse", None)
        reached = bench.post(sent)
    assert reached == sent | ({"vllm_xargs": {"lengthwise_class": "batch"}} if has_classes else {})
    assert bench.count("unscored", "no_scorer" if scorer is None else "no_text") == 1
    assert bench.post(sent | {"vllm_xargs": HINTS})["vllm_xargs"].keys() <= {"lengthwise_class"}


def test_with_a_ranker_in_the_engine_no_plain_body_is_parsed(monkeypatch):
    bench = Bench(None, classes=CLASSES, scores_in_engine=True)
    monkeypatch.setattr(middleware.client_bodies, "parse", None)
    sent = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    reached = bench.post(sent, "/v1/chat/completions")
    assert reached == {**sent, "vllm_xargs": {"lengthwise_class": "batch"}}
    assert bench.count("engine", "") == 1
    bench.post({"x": 1}, "/generative_scoring")
    assert bench.count("engine", "") == 2


def test_a_second_header_hides_nothing():
    """vLLM reads the first of two."""
    bench = Bench(FakeScorer(), classes=CLASSES, key_hashes=[hash_of("sk-1")])
    second = [(b"content-type", b"text/plain"), (b"authorization", b"Bearer sk-gate")]
    reached = bench.post({"prompt": "hello"} | HINTED, more_headers=second, **key("sk-1"))
    assert reached["vllm_xargs"] == CHAT | {"lengthwise_score": 5.0}
    assert hints_counted(bench, "dropped") == 1


def test_a_class_header_that_comes_twice_counts_for_none():
    bench = Bench(None, classes=CLASSES)
    own = [(b"x-user-class", b"chat"), (b"x-user-class", b"batch")]
    assert bench.post({"prompt": "x"}, more_headers=own)["vllm_xargs"] == BATCH


FORM = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b'name="vllm_xargs"\r\n\r\n{"lengthwise_score": -1}', FORM, 400),
        (rb'name="vllm_xargs"\r\n\r\n{"lengthwis\u0065_score": -1}', FORM, 400),
        ('{"lengthwise_score": -1}'.encode("utf-16"), FORM + "; charset=utf-16", 400),
        (b'name="file"\r\n\r\n\\u00a0\\u0041 sound', FORM, 200),
    ],
)
def test_a_form_with_hints_is_refused_and_counted(content, content_type, status):
    bench = Bench(FakeScorer(), classes=CLASSES)
    asked = ("/v1/audio/transcriptions",)
    first, *_ = asyncio.run(bench.call(content, *asked, content_type=content_type))
    assert first["status"] == status
    assert bench.server.content == (content if status == 200 else b"")
    assert hints_counted(bench, "refused") == (status == 400)
    assert bench.count("unscored", "endpoint") == 1
    asyncio.run(bench.call(content, *asked, content_type=content_type, **key("sk-gate")))
    assert bench.server.content == content


def test_an_endpoint_that_vllm_does_not_guard_drops_hints_without_a_key_too():
    scorer = FakeScorer()
    bench = Bench(scorer, key_hashes=[hash_of("sk-right")])
    assert bench.post({"prompt": "x"} | HINTED, "/invocations")["vllm_xargs"] == {}
    assert bench.count("unscored", "no_key") == 1
    assert scorer.asked == []


@pytest.mark.parametrize(
    ("root", "path", "is_scored"),
    [
        ("/api", "/api/v1/completions", True),
        ("/v", "/v1/completions", True),  # not below that root
        ("/api", "/v1/completions", True),
        ("/v1", "/v1/completions", False),
    ],
)
def test_a_path_is_read_as_vllms_routes_read_it(root, path, is_scored):
    scope = {"path": path, "root_path": root}
    assert (middleware._path(scope) == "/v1/completions") == is_scored


def test_a_socket_of_sound_is_counted():
    bench = Bench(FakeScorer())
    scope = {"type": "websocket", "path": "/v1/realtime", "headers": []}

    async def app(*call: Any) -> None: ...

    bench.middleware.app = app
    asyncio.run(bench.middleware(scope, app, app))  # type: ignore[arg-type]
    assert bench.count("unscored", "endpoint") == 1


NUM_HONEST, NUM_FORGING = 150, 50


def honest_p50_s(within_s: float, forge: Mapping[str, Any], **settings: Any) -> float:
    """Median latency of honest requests beside clients with long answers that send `forge`."""
    dice = np.random.default_rng(0)
    tokens = np.append(dice.integers(5, 60, NUM_HONEST), dice.integers(150, 200, NUM_FORGING))
    bench = Bench(FakeScorer(), **settings)
    scores = []
    for row, count in enumerate(tokens):
        own = {} if row < NUM_HONEST else forge
        reached = bench.post({"prompt": "x" * int(count)} | own).get("vllm_xargs", {})
        scores.append(float(reached.get("lengthwise_score", np.nan)))
    requests = make_requests(
        prompt_tokens=np.full(len(tokens), 20),
        output_tokens=tokens,
        arrival_s=dice.uniform(0, within_s, len(tokens)),
        scores=scores,
        user_class=["honest"] * NUM_HONEST + ["forging"] * NUM_FORGING,
    )
    instance = Instance(
        latency=AffineLatency(base_s=0.02, per_token_s=1e-4), kv_blocks=2000, max_num_seqs=4
    )
    timeline = simulate(requests, load_policy("pars"), instance)
    honest = timeline.requests.user_class == "honest"
    return float(np.median((timeline.finished_s - timeline.requests.arrival_s)[honest]))


@pytest.mark.parametrize("within_s", [75.0, 10.0])
def test_forged_scores_cost_honest_clients_nothing(within_s):
    """At nine tenths of what the engine can, and far beyond that."""
    alone_s = honest_p50_s(within_s, {})
    forged: dict[str, Any] = {"vllm_xargs": {"lengthwise_score": -1e9}, "priority": -9}
    ratios = {
        name: honest_p50_s(within_s, forge, **settings) / alone_s
        for name, forge, settings in (
            ("forged", forged, {}),
            ("forged, and all are believed", forged, {"client_hints": True}),
            ("text kept back", {"prompt": [1, 2]}, {}),
            ("more prompts than are scored", {"prompt": ["x"] * (MOST_PROMPTS + 1)}, {}),
            ("text that cannot be sent", {"prompt": "\ud800"}, {}),
            ("text kept back, to the median", {"prompt": [1, 2]}, {"unscored_last": False}),
        )
    }
    print(f"{NUM_HONEST + NUM_FORGING} requests in {within_s:g} s:", ratios)
    assert ratios["forged"] == 1
    assert ratios["forged, and all are believed"] > 1.1
    assert ratios["text kept back"] <= 1.01
    assert ratios["more prompts than are scored"] <= 1.01
    assert ratios["text that cannot be sent"] <= 1.01
    if within_s < 60:  # The place of the median is far before the end of a long queue.
        assert ratios["text kept back, to the median"] > 2


def held(bench: Bench, number: int, *senders: dict[str, Any]) -> None:
    """Each sender sends so many requests at once; no score is there before all are sent."""

    async def main() -> None:
        scorer = SlowScorer()
        bench.middleware.scorer = scorer  # type: ignore[assignment]
        calls = [
            asyncio.create_task(bench.call(b'{"prompt": "x"}', "/v1/completions", **sender))
            for sender in senders
            for _ in range(number)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        scorer.ready.set()
        await asyncio.gather(*calls)

    asyncio.run(main())


def key(name: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {name}"}}


@pytest.mark.parametrize(
    ("first", "second", "scored"),
    [
        (key("sk-a"), key("sk-b"), 4 + 4),  # each key has a budget of its own
        (key("sk-a"), key("sk-a"), 4),
        (key("invented-1"), key("invented-2"), 4),  # one address
        ({"client": ("10.0.0.1", 1)}, {"client": ("10.0.0.2", 1)}, 4 + 4),
        ({"client": ("10.0.0.1", 1)}, {"client": ("10.0.0.1", 2)}, 4),
        ({"client": ("2001:db8::1", 1)}, {"client": ("2001:db8::2:1", 1)}, 4),
        ({"client": ("2001:db8::1", 1)}, {"client": ("2001:db8:0:1::1", 1)}, 4 + 4),
        ({"client": None}, {"client": None}, 4),
        (key("sk-gate"), key("sk-gate"), 20),
    ],
)
def test_a_client_has_no_more_than_its_share_of_the_scores(first, second, scored):
    classes = UserClasses(
        tbt_s={"chat": None}, api_keys={"sk-a": "chat", "sk-b": "chat"}, trusted_keys=("sk-gate",)
    )
    bench = Bench(None, classes=classes, max_scores_per_key=4)
    held(bench, 10, first, second)
    assert bench.count("scored") == scored
    assert bench.count("unscored", "budget") == 20 - scored
    assert bench.middleware.scores_in_progress == {}


def test_a_late_score_holds_its_place_until_it_is_asked_for_no_more():
    async def main() -> None:
        bench, _ = late_bench(SlowScorer())
        bench.configure(max_scores_per_key=1)
        seen: list[Any] = []

        async def engine(scope: Any, receive: Any, send: Any) -> None:
            seen.append(dict(bench.middleware.scores_in_progress))
            if len(seen) == 1:
                await bench.call(b'{"prompt": "second"}', "/v1/completions")
            await send({"type": "http.response.start", "status": 200, "headers": []})

        bench.middleware.app = engine
        await bench.call(b'{"prompt": "first"}', "/v1/completions")
        async with asyncio.timeout(60):
            while bench.middleware.scores_in_progress:
                await asyncio.sleep(0)
        assert seen == [{"10.1.2.3": 1}, {"10.1.2.3": 1}]
        assert bench.count("unscored", "budget") == 1

    asyncio.run(main())


@pytest.mark.parametrize("scorer", [None, *map(FakeScorer, ("unavailable", "timeout", "error"))])
def test_hints_of_a_client_are_dropped_where_no_score_comes_either(scorer):
    reached = Bench(scorer).post({"prompt": "hello", "vllm_xargs": HINTS | {"other": 1}})
    assert reached["vllm_xargs"] == {"other": 1}


def test_a_trusted_key_may_send_hints_and_the_class_of_a_key_stays():
    bench = Bench(FakeScorer(), classes=CLASSES)
    given = {key: value for key, value in HINTS.items() if key != "lengthwise_request_key"}
    sent = {"prompt": "x", "vllm_xargs": HINTS}
    assert bench.post(sent, **key("sk-gate"))["vllm_xargs"] == given
    assert (hints_counted(bench, "dropped"), hints_counted(bench, "kept")) == (0, 1)

    bench = Bench(FakeScorer(), classes=CLASSES, client_hints=True)
    own = {"lengthwise_score": 7, "lengthwise_class": "vip", "lengthwise_tbt_s": 9.0, "other": "x"}
    sent = {"prompt": "x", "vllm_xargs": own}
    assert bench.post(sent)["vllm_xargs"] == own
    reached = bench.post(sent, **key("sk-1"))["vllm_xargs"]
    assert reached == CHAT | {"lengthwise_score": 7, "other": "x"}
    assert bench.middleware.scorer.asked == []  # type: ignore[union-attr]
    assert bench.count("explicit") == 2


CHAT = {"lengthwise_class": "chat", "lengthwise_tbt_s": 0.05}
BATCH = {"lengthwise_class": "batch"}


@pytest.mark.parametrize(
    ("headers", "client", "hints"),
    [
        ({"X-User-Class": "chat"}, ("10.9.9.9", 1), CHAT),
        ({"X-User-Class": "chat"}, ("::1", 1), CHAT),
        ({"X-User-Class": "chat"}, ("192.168.0.1", 1), BATCH),
        ({"X-User-Class": "chat"}, ("testclient", 1), BATCH),
        ({"X-User-Class": "chat"}, None, BATCH),
        # A known key goes before the header, and where neither says a class it is the default.
        ({"Authorization": "Bearer sk-1"}, ("10.1.2.3", 5), CHAT),
        ({"Authorization": "Bearer sk-2", "X-User-Class": "chat"}, ("10.1.2.3", 5), CHAT),
        ({"Authorization": "Bearer sk-1", "X-User-Class": "batch"}, ("10.1.2.3", 5), CHAT),
        ({"X-User-Class": "no such class"}, ("10.1.2.3", 5), BATCH),
        ({}, ("10.1.2.3", 5), BATCH),
    ],
)
def test_the_header_counts_from_a_trusted_proxy_only(headers, client, hints):
    reached = Bench(None, classes=CLASSES).post({"prompt": "x"}, headers=headers, client=client)
    assert reached["vllm_xargs"] == hints


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        ("timeout", ("late", "timeout")),
        ("breaker_open", ("unscored", "breaker_open")),
        ("unavailable", ("unscored", "unavailable")),
    ],
)
def test_without_a_score_the_request_goes_on_as_it_was_sent(outcome, counted):
    bench = Bench(FakeScorer(outcome))
    sent = b'{"prompt":  "hello"}'
    bench.post(sent)
    assert bench.server.content == sent
    assert bench.count(*counted) == 1


WITHOUT_TEXT: list[Any] = [
    [1, 2, 3], [[1, 2], [3]], ["text", [3]], ["text", ""], [], "", None, {"a": 1}, 5,
    ["text"] * (MOST_PROMPTS + 1),
]  # fmt: skip


@pytest.mark.parametrize("prompt", WITHOUT_TEXT)
def test_a_prompt_without_text_is_not_scored_and_ranks_behind_all_that_are(prompt):
    scorer = FakeScorer()
    bench = Bench(scorer, classes=CLASSES)
    plain = {"lengthwise_class": "batch"}
    assert bench.post({"prompt": prompt})["vllm_xargs"] == plain  # behind nobody yet
    bench.post({"prompt": "x" * 40})
    bench.post({"prompt": "hello"})
    last = plain | {"lengthwise_score": 40.0}
    assert bench.post({"prompt": prompt})["vllm_xargs"] == last
    assert bench.post({"prompt": prompt}, **key("sk-gate"))["vllm_xargs"] == plain
    bench.configure(unscored_last=False)
    assert bench.post({"prompt": prompt})["vllm_xargs"] == plain
    assert scorer.asked == ["x" * 40, "hello"]
    assert bench.count("unscored", "no_text") == 4


@pytest.mark.parametrize(
    "hides",
    [
        lambda size: {"prompt": "truncated".ljust(size)},
        lambda size: {"prompt": ["truncated", "x" * size]},
        lambda size: {"prompt": "x" * size + " " * 10 * MAX_CHARACTERS},
    ],
)
def test_a_request_that_is_read_in_part_ranks_last_and_in_its_order(hides):
    bench = Bench(FakeScorer(quantiles={0.5: 70.0}), classes=CLASSES)
    bench.post({"prompt": "a longest prompt, " * 2000})
    top = bench.middleware.highest_score
    assert top == MAX_CHARACTERS + 1  # itself cut, and the first
    carried = [bench.post(hides(size))["vllm_xargs"] for size in (12, 11)]
    first, second = (each["lengthwise_score"] for each in carried)
    assert 0.999 * top < second < first < top
    assert carried[0]["lengthwise_quantiles"] == [0.5, 70.0]
    assert bench.count("scored", "cut") == 3
    believed = bench.post(hides(12), **key("sk-gate"))["vllm_xargs"]["lengthwise_score"]
    assert believed < 30
    bench.configure(unscored_last=False)
    assert bench.post(hides(12))["vllm_xargs"]["lengthwise_score"] == believed


@pytest.mark.parametrize("outcome", sorted({"error", "unavailable", "timeout"} | UNSCORABLE))
def test_only_what_is_in_a_clients_hands_puts_its_request_behind_all(outcome):
    bench = Bench(FakeScorer(outcome))
    bench.middleware.highest_score = 40.0
    if outcome == "budget":
        bench.middleware.scores_in_progress["10.1.2.3"] = 512
    sent = {"prompt": [1] if outcome == "no_text" else "hello"}
    hints = bench.post(sent).get("vllm_xargs", {})
    assert hints == ({"lengthwise_score": 40.0} if outcome in UNSCORABLE else {})


def test_of_several_prompts_the_longest_answer_counts_and_each_takes_a_place():
    bench = Bench(FakeScorer(), max_scores_per_key=3)
    assert bench.post({"prompt": ["a", "bbb", "cc"]})["vllm_xargs"] == {"lengthwise_score": 3.0}
    assert bench.middleware.scores_in_progress == {}
    bench.post({"prompt": ["a", "b", "c", "d"]})
    assert (bench.count("scored"), bench.count("unscored", "budget")) == (1, 1)
    for outcome in ("overloaded", "invalid_prompt"):
        one = Bench(FakeScorer(outcome))
        one.post({"prompt": ["a", "b"]})
        assert one.count("unscored", outcome) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"[1, 2]",
        b"\xff\xfe\x00",
        b'{"prompt": "x", "vllm_xargs": [1]}',
        b'{"prompt": "x", "vllm_xargs": "y"}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": 1' + b"0" * 5000 + b"}",
    ],
)
def test_what_is_no_request_passes_unchanged(content):
    bench = Bench(FakeScorer())
    asyncio.run(bench.call(content, "/v1/completions"))
    assert bench.server.content == content
    assert bench.count("unscored", "unreadable") == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_body_whose_size_vllm_will_quote_keeps_it(path):
    bench = Bench(FakeScorer(), classes=CLASSES)
    sent = {"model": "m", "prompt": "hello"}
    assert bench.post(sent, path) == sent
    assert bench.count("unscored", "unreadable") == 1


@pytest.mark.parametrize(
    ("path", "content_type"),
    [("/v1/embeddings", "application/json"), ("/v1/completions", "text/plain")],
)
def test_other_requests_are_not_touched(path, content_type):
    bench = Bench(FakeScorer())
    content = b'{"prompt": "x"}'
    asyncio.run(bench.call(content, path, content_type=content_type))
    assert bench.server.content == content
    assert bench.count("scored") == bench.count("unscored", "unreadable") == 0


def test_the_server_hears_of_a_client_that_leaves():
    server = Server()
    heard = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await server(scope, receive, send)
        heard.append((await receive())["type"])

    bench = Bench(FakeScorer())
    bench.middleware.app = app
    asyncio.run(bench.call(b'{"prompt": "x"}', "/v1/completions"))
    assert heard == ["http.disconnect"]


def test_a_client_that_leaves_amid_its_body_is_not_counted():
    bench = Bench(FakeScorer())
    gone = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return gone.pop(0)

    async def send(message: Any) -> None: ...

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    asyncio.run(bench.middleware(scope, receive, send))
    assert bench.server.last == "http.disconnect"
    assert bench.count("unscored", "unreadable") == 0


class SlowScorer(FakeScorer):
    """Answers once it is let to."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = asyncio.Event()

    async def ask_async(self, prompt: str, client: str = "") -> Answer:
        await self.ready.wait()
        return await super().ask_async(prompt, client)


class Sending(LateScoring):
    """Notes the scores sent to the engines."""

    def __init__(self, count: Any) -> None:
        super().__init__(Path(), late_s=60, count=count)
        self._socket.close()
        self.sent: list[Any] = []

    async def send(self, carried: Any) -> None:
        self.sent.append(carried)


def late_bench(scorer: Any) -> tuple[Bench, Sending]:
    """A middleware with a short deadline, and the late scores that it sends."""
    bench = Bench(scorer, deadline_s=0.01)
    bench.middleware.late = late = Sending(bench.middleware.metrics.count_late)
    return bench, late


@pytest.mark.parametrize("is_trial", [False, True])
def test_a_score_that_misses_the_deadline_is_sent_after_its_request(is_trial):
    async def main() -> None:
        scorer = SlowScorer()
        bench, late = late_bench(scorer)
        if is_trial:  # of a service that was away: no deadline is waited for
            scorer.away_s = 0.0
            bench.configure(deadline_s=59.0)
        reached = asyncio.Event()

        async def engine(scope: Any, receive: Any, send: Any) -> None:
            await bench.server(scope, receive, lambda message: asyncio.sleep(0))
            reached.set()
            while not late.sent:  # it waits in the queue
                await asyncio.sleep(0.001)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": False})

        bench.middleware.app = engine
        call = asyncio.create_task(bench.call(b'{"prompt": "hello"}', "/v1/completions"))
        await asyncio.wait_for(reached.wait(), 30)
        scorer.ready.set()
        assert (await asyncio.wait_for(call, 60))[-1]["body"] == b"a"
        request_key = json.loads(bench.server.content)["vllm_xargs"]["lengthwise_request_key"]
        assert late.sent == [{"lengthwise_score": 5.0, "lengthwise_request_key": request_key}]
        assert len(request_key) == 32
        assert bench.count("late", "timeout") == 1
        assert late_count(bench, "sent") == 1
        # What its client keeps from being scored ranks behind late scores, too.
        bench.middleware.app = bench.server
        await bench.call(b'{"prompt": [1, 2]}', "/v1/completions")
        assert json.loads(bench.server.content)["vllm_xargs"] == {"lengthwise_score": 5.0}

    asyncio.run(main())


def late_count(bench: Bench, outcome: str) -> float | None:
    return bench.registry.get_sample_value("lengthwise_late_scores_total", {"outcome": outcome})


@pytest.mark.parametrize("fails", [False, True])
def test_with_the_first_bytes_of_the_answer_or_its_end_the_score_is_asked_for_no_more(fails):
    async def main() -> None:
        bench, late = late_bench(SlowScorer())

        async def engine(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.sleep(0)
            assert len(late._tasks) == 1
            if fails:
                raise RuntimeError("the engine is dead")
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            while late._tasks:
                await asyncio.sleep(0.001)
            await send({"type": "http.response.body", "body": b"b", "more_body": False})

        bench.middleware.app = engine
        call = asyncio.wait_for(bench.call(b'{"prompt": "hello"}', "/v1/completions"), 60)
        with pytest.raises(RuntimeError, match="dead") if fails else nullcontext():
            assert (await call)[-1]["body"] == b"b"
        while late._tasks:
            await asyncio.sleep(0)
        assert late_count(bench, "started") == 1
        assert late.sent == []

    asyncio.run(main())


@pytest.mark.parametrize("outcome", ["invalid_prompt", "error"])
def test_a_prompt_that_cannot_be_scored_gets_no_request_key(outcome):
    bench, _ = late_bench(FakeScorer(outcome))
    sent = {"prompt": "hello"}
    assert bench.post(sent) == sent
    assert bench.count("unscored", outcome) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text() | st.just("prompt"), json_values, max_size=5))
def test_every_body_reaches_the_server_with_all_that_was_in_it(body):
    reached = Bench(FakeScorer()).post(body)
    if body.get("vllm_xargs") is None and "vllm_xargs" in reached:
        del reached["vllm_xargs"]
    assert repr(reached) == repr({k: v for k, v in body.items() if k in reached})
    assert body.keys() - reached.keys() <= {"vllm_xargs"}


def test_no_score_is_awaited_of_a_service_that_is_away_for_longer(monkeypatch):
    """Such a request is not read, and reaches the server as it was sent."""
    scorer = FakeScorer()
    bench, body = Bench(scorer, late_s=5.0), b'{"prompt":  "hello"}'
    with monkeypatch.context() as patched:
        patched.setattr(middleware.client_bodies, "parse", None)
        scorer.away_s = 5.1
        asyncio.run(bench.call(body, "/v1/completions"))
    assert (bench.server.content, scorer.asked) == (body, [])
    assert bench.count("unscored", "breaker_open") == 1
    # Hints are still dropped.
    bench.post({"prompt": "hello", "vllm_xargs": {"lengthwise_score": 3.0}})
    assert b"lengthwise_score" not in bench.server.content
    scorer.away_s = 0.0  # a trial
    bench.post({"prompt": "hello"})
    assert scorer.asked == ["hello"]


def test_a_service_that_never_answers_is_soon_left_alone(monkeypatch, tmp_path, tiny_bundle):
    """However late the scores of its requests may be."""
    monkeypatch.setattr(fail_open, "SILENT_S", 0.1)
    model, proceed = RankerModel.load(tiny_bundle), threading.Event()
    real = model.scorer.score
    service = ScoringServer(model, ServerConfig(address="127.0.0.1:0", drain_grace_s=0))
    monkeypatch.setattr(model.scorer, "score", lambda ids: (proceed.wait(300), real(ids))[1])
    service.start()
    bench = Bench(None)
    monkeypatch.setattr(middleware, "ScoreMetrics", lambda: bench.middleware.metrics)
    config = MiddlewareConfig(scorer=service.target, deadline_s=0.2, late_s=3000.0)
    monkeypatch.setenv(VARIABLE, config.to_json())
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path))
    monkeypatch.setenv(ALLOWED_PROXIES, "")
    made = VllmScores(bench.server)
    assert made.scorer is not None
    made.scorer._breaker = CircuitBreaker(open_s=3600.0, max_open_s=3600.0)
    bench.middleware = made

    async def main() -> None:
        for number in range(5):
            await bench.call(b'{"prompt": "hello %d"}' % number, "/v1/completions")

    asyncio.run(main())
    assert bench.count("late", "timeout") == 3
    assert bench.count("unscored", "breaker_open") == 2
    assert made.scores_in_progress == {}
    proceed.set()
    made.scorer.close()
    assert made.late is not None
    made.late._socket.close()
    service.stop()


@pytest.mark.parametrize("count", [1, 8, 700])
@pytest.mark.parametrize("state", ["dead", "hung", "refusing", "slow"])
def test_no_request_ranks_last_because_the_service_is_away(state, count, tiny_bundle, tmp_path):
    """All of one address, without and with text; none keeps a place of the scores."""
    model, proceed = RankerModel.load(tiny_bundle), threading.Event()
    real = model.scorer.score
    model.scorer.score = lambda ids: (proceed.wait(300), real(ids))[1]  # type: ignore[method-assign]
    (tmp_path / "token").write_text("sk-1\n")
    token = {"token_file": str(tmp_path / "token")} if state == "refusing" else {}
    service = ScoringServer(model, ServerConfig(address="127.0.0.1:0", drain_grace_s=0, **token))
    service.start()
    if state == "dead":
        service.stop()
    breaker = CircuitBreaker(open_s=3600.0, max_open_s=3600.0)
    scorer = FailOpenScorer(service.target, budget_s=0.3, breaker=breaker)
    bench, reached = Bench(scorer, deadline_s=0.05), list[Any]()
    bench.middleware.highest_score = 40.0

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        reached.append(json.loads((await receive())["body"]).get("vllm_xargs"))

    async def burst() -> None:
        body = b'{"prompt": "hello"}'
        await asyncio.gather(*(bench.call(body, "/v1/completions") for _ in range(count)))

    async def main() -> None:
        bench.middleware.app = engine
        await burst()
        if state == "slow":  # in time for none, and answers all
            proceed.set()
            return
        async with asyncio.timeout(120):
            while not scorer.away_s:
                await burst()
        await burst()
        asked = bench.registry.get_sample_value("lengthwise_score_wait_seconds_count")
        await bench.call(b'{"prompt": [1, 2]}', "/v1/completions")
        assert bench.registry.get_sample_value("lengthwise_score_wait_seconds_count") == asked
        while bench.middleware.scores_in_progress:
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert len(reached) > count - 1
    assert not any(reached)
    assert bench.count("unscored", "budget") == 0
    proceed.set()
    scorer.close()
    if state != "dead":
        service.stop()


def test_settings_come_from_the_environment_and_late_scores_need_a_shared_folder(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(middleware, "ScoreMetrics", lambda: ScoreMetrics(CollectorRegistry()))
    classes = tmp_path / "classes.json"
    classes.write_text('{"classes": {"chat": {"tbt_s": 0.1}}, "default": "chat"}')
    for folder, late_s, is_late in (
        ("", 5.0, False),
        (tmp_path, None, False),
        (tmp_path, 5.0, True),
    ):
        config = MiddlewareConfig(
            scorer="127.0.0.1:1", late_s=late_s, classes=str(classes),
            security=ClientSecurity(token="t"),
        )  # fmt: skip
        assert MiddlewareConfig.from_json(config.to_json()) == config
        monkeypatch.setenv(VARIABLE, config.to_json())
        monkeypatch.setenv(SHARED_FOLDER, str(folder))
        monkeypatch.setenv(ALLOWED_PROXIES, "")
        made = VllmScores(Server())
        assert made.classes.tbt_s == {"chat": 0.1}
        assert (made.late is not None) == is_late
        assert isinstance(made.scorer, FailOpenScorer)
        assert made.scorer._timeout_s == (5.05 if is_late else 0.05)
        made.scorer.close()
        if made.late is not None:
            made.late._socket.close()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"deadline": 1}', '{"deadline_s": -1}', '{"late_s": 0}'),
        *('{"client_hints": "false"}', '{"open_load": 1}', '{"key_hashes": "ab"}'),
        '{"key_hashes": null}',
    ],
)
def test_settings_that_serve_vllm_did_not_write_are_refused(text):
    with pytest.raises(ConfigError):
        MiddlewareConfig.from_json(text)


def test_a_router_with_a_key_is_answered_here_and_nothing_else_is(tmp_path):
    bench = Bench(FakeScorer(), reports=EngineReports(tmp_path))
    load = {"engine": 0, "waiting": 3}
    text = "# HELP a_total b\n# TYPE a_total counter\na_total 7.0\n"
    server = report_server(tmp_path, 0, lambda: {"load": load, "metrics": text})

    def get(path: str) -> list[Any]:
        return asyncio.run(bench.call(b"", path, method="GET"))

    bench.configure(key_hashes=[hash_of("sk-1")])
    start, _ = get("/lengthwise/load")
    assert start["status"] == 401
    bench.configure(open_load=True)
    start, body = get("/lengthwise/load")
    assert start["status"] == 200
    assert json.loads(body["body"]) == [load]
    assert [message.get("body") for message in get("/health")] == [None, b"a", b"b", b"c"]
    *_, last = get("/metrics")
    assert last["body"] == b"c" + text.encode()
    server.close()
    *_, last = get("/metrics")
    assert last["body"] == b"c"
    assert bench.registry.get_sample_value("lengthwise_dropped_reports") == 1


def test_the_engine_knows_each_client_by_a_name_that_no_client_can_set():
    bench, forged = Bench(None, CLASSES, shares=True, client_hints=True), "lengthwise_client"
    bench.middleware.unnamed = None

    def name_of(body: Mapping[str, Any] | None = None, key: str = "", **sent: Any) -> str:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"prompt": "hello", **(body or {})}
        return bench.post(body, headers=headers, **sent)["vllm_xargs"][forged]

    address = name_of()
    assert len(address) == 16
    # A key that is not known is the client's own invention, so it counts by its address.
    forgeries = ({forged: "x"}, {forged: None}, {forged: name_of(key="sk-1")})
    assert {name_of({"vllm_xargs": each}, key="sk-new") for each in forgeries} == {address}
    gate = name_of(key="sk-gate")
    assert name_of({"vllm_xargs": {forged: "x"}}, key="sk-gate") == gate
    network = {name_of(client=(f"2001:db8::{end}", 1)) for end in ("1", "ffff:2")}
    others = name_of(key="sk-1"), gate, name_of(client=("2001:db8:0:1::1", 1))
    assert len({address, *network, *others}) == 5
    bench.configure(shares=False)
    body = {"prompt": "hello", "vllm_xargs": {forged: "x"}}
    assert forged not in bench.post(body).get("vllm_xargs", {})


def test_the_first_client_of_a_lone_server_needs_no_name():
    bench, forged = Bench(None, shares=True), {"lengthwise_client": "x"}

    def name_of(end: int, path: str = "/v1/completions") -> str | None:
        body = {"prompt": "hello", "vllm_xargs": forged} if end % 2 else {"prompt": "hello"}
        reached = bench.post(body, path, client=(f"10.0.0.{end}", 1)).get("vllm_xargs") or {}
        return reached.get("lengthwise_client")

    assert [name_of(1), name_of(1)] == [None, None]
    second = name_of(2)
    assert second
    assert [name_of(2), name_of(1)] == [second, None]
    # Requests of this endpoint carry no name: from now on those of all clients do.
    name_of(3, "/cohere/v2/chat")
    assert name_of(1) not in (None, second)
    assert name_of(2) == second


@pytest.mark.parametrize("folder", [None, "/tmp"])
def test_one_of_several_servers_names_each_client(folder, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "")
    monkeypatch.setattr(middleware, "ScoreMetrics", lambda: None)
    if folder:
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", folder)
    assert middleware.VllmScores(Server()).unnamed == (None if folder else "")
