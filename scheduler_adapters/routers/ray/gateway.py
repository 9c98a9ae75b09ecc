"""The gateway: an OpenAI-compatible endpoint that serves requests in legs on many replicas.

    serve.run(build_gateway(engines, GatewayConfig(model="MODEL", think_end=151668)))

`engines` is a bound deployment of a `RayReplica`.
"""

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, cast

import ray
from ray import serve
from ray.exceptions import RayTaskError
from ray.serve import metrics
from ray.serve.config import RequestRouterConfig
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from lengthwise import strict_json
from lengthwise.errors import require
from lengthwise.settings import Count, settings
from lengthwise.tables import prompt_text
from scheduler_adapters.engines.body_fields import SAMPLING
from scheduler_adapters.placement import Placement, overrides
from scheduler_adapters.routers import openai_bodies as openai
from scheduler_adapters.routers.legs import Leg, MovePoints
from scheduler_adapters.routers.prompt_scores import RoutingScores
from scheduler_adapters.routers.ray.leg_streams import LegLimits, LegStreams, Unavailable
from scheduler_adapters.routers.routing import MovingConfig
from scheduler_adapters.routers.text_stream import StopStrings, TransformersCodec
from scheduler_adapters.timeline.live_log import TimelineFile, finished_row

log = logging.getLogger(__name__)

_CHAT: Final = "/v1/chat/completions"
_BYTES_PER_TOKEN: Final = 64
"""Bytes of a body, and for each token of its context; text of any language needs fewer."""


@settings
class GatewayConfig(MovingConfig, LegLimits):
    """Settings of the gateway and of its router."""

    model: str
    """Name of the model for clients, and for the codec."""
    think_end: int | None = None
    """Token that ends the reasoning phase; None: the model does not reason."""
    max_context_tokens: int = 4096
    """Most tokens of prompt and output."""
    max_body_bytes: Count = 4 << 20
    """Longest body, else status 413; at most 64 KiB and 64 bytes per token of the context."""
    hand_over_kv: bool = False
    """Hand the KV of a moved request over; the engines need a connector for it. False: it is
    computed again."""
    move_every_tokens: Count | None = None
    """Generated tokens after which a request may be moved by a tick of the placement; None: never.
    With hand_over_kv each such point ends a leg."""
    scorer: str | None = None
    """service:HOST:PORT or bundle:PATH; None: requests are routed without a score."""
    scorer_deadline_s: float = 0.05
    """Longest wait for a score."""
    record: str | None = None
    """File (.jsonl) with a line per finished request, for `replay-cluster`; None: no record."""
    gateways: Count | None = None
    """Gateways; if one of several dies, another serves the next request. None: 2, or 1 with a
    record, or with a placement that acts at ticks: its roles are known to one gateway only."""

    def __post_init__(self) -> None:
        is_one = self.num_gateways == 1
        require("gateways", self.gateways, is_one or not self.record, "1 with a record")

    @cached_property
    def made_placement(self) -> Placement:
        """The placement, made once; each router makes its own."""
        return self.load()

    @property
    def num_gateways(self) -> int:
        ticks = overrides(self.made_placement, "tick") and bool(self.roles)
        return self.gateways or (1 if self.record or ticks else 2)

    @property
    def move_points(self) -> MovePoints:
        """The points of a request at which the placement decides again."""
        placement = self.made_placement
        return MovePoints(
            prefill_end=bool(self.roles) and overrides(placement, "at_prefill_end"),
            think_end=self.think_end is not None and overrides(placement, "at_phase_change"),
            every_tokens=self.move_every_tokens,
            with_kv=self.hand_over_kv,
        )


class _Exported(Counter[str]):
    """Counts by kind that are a metric of Ray as well."""

    def __init__(self, name: str, of_what: str) -> None:
        super().__init__()
        self.metric = metrics.Counter(f"lengthwise_{name}", of_what, tag_keys=("kind",))

    def __setitem__(self, kind: str, number: int) -> None:
        if number > self[kind]:
            self.metric.inc(number - self[kind], tags={"kind": kind})
        super().__setitem__(kind, number)


class PhaseGateway:
    """Ingress of the application; `make_codec` is called with the name of the model."""

    def __init__(self, engines: Any, config: GatewayConfig, make_codec: Callable[[str], Any]):
        self.config, self.codec = config, make_codec(config.model)
        self.readers = ThreadPoolExecutor(2, "reader")  # parse and tokenize bodies
        self.scores = RoutingScores(config.scorer, config.scorer_deadline_s)
        handle = engines.options(method_name="generate", stream=True)
        self.streams = LegStreams(handle, config, config.move_points)
        self.actor = ray.get_runtime_context().get_actor_name() or ""
        self.counts: Counter[str] = _Exported("requests", "Requests by outcome.")
        """Requests by outcome."""
        self.streams.counts = _Exported("legs", "Legs by decider, and moves by outcome.")
        self.scores.counts = _Exported("scores", "Requests by outcome of their scoring.")
        bounds = [0.1 * 2**n for n in range(13)]
        self.first_token_s = metrics.Histogram(
            "lengthwise_first_token_s", "Time to first token.", boundaries=bounds
        )
        self.record = TimelineFile(config.record) if config.record else None
        self.start_s, self.numbers = time.monotonic(), dict[str, int]()
        """Start of the record's clock, and replicas by their number in it."""

    async def __call__(self, request: Request) -> Response:
        """Serve one HTTP request."""
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        if path == "/v1/models":
            return JSONResponse({"object": "list", "data": [{"id": self.config.model}]})
        if path == "/lengthwise/routing":
            streams, scores = self.streams.counts, self.scores.counts
            return JSONResponse({"requests": self.counts, "legs": streams, "scores": scores})
        if path not in (_CHAT, "/v1/completions") or request.method != "POST":
            return JSONResponse(openai.error_body(404, f"no endpoint {path!r}"), 404)
        content, longest = bytearray(), _BYTES_PER_TOKEN * self.config.max_context_tokens
        most = min(self.config.max_body_bytes, (64 << 10) + longest)
        async for part in request.stream():
            content += part
            if len(content) > most:
                self.counts["refused"] += 1
                return JSONResponse(openai.error_body(413, f"a body has at most {most} bytes"), 413)
        return await self.answer(bytes(content), is_chat=path == _CHAT)

    async def answer(self, content: bytes, *, is_chat: bool) -> Response:
        """Return the answer to a body: JSON, or a stream of server-sent events."""
        try:
            given, request, text = await asyncio.get_running_loop().run_in_executor(
                self.readers, self._read, time.monotonic(), content, is_chat
            )
        except openai.BadRequest as error:
            self.counts["refused"] += 1
            return JSONResponse(openai.error_body(400, str(error), error.param), 400)
        if (found := await self.scores.of(text)) is not None:
            request.score, request.quantiles = found
        writer = openai.Writer(given, is_chat, request, self.config.model)
        pieces = self._pieces(request, StopStrings(given["stop"]), is_chat=is_chat)
        try:
            # The first tokens are awaited, so that a failure until then has a status of its own.
            first = await anext(pieces)
            self.first_token_s.observe(time.monotonic() - request.arrival_s)
            if given.get("stream"):
                events = self._events(first, pieces, writer)
                return StreamingResponse(events, media_type="text/event-stream")
            parts = [first, *[piece async for piece in pieces]]
        except (Unavailable, RayTaskError) as error:
            return JSONResponse(*self._failure(error))
        self.counts["finished"] += 1
        return JSONResponse(writer.whole(parts))

    def _read(
        self, arrival_s: float, content: bytes, is_chat: bool
    ) -> tuple[dict[str, Any], Leg, str | None]:
        """Return a body's fields, its request and the text to score; called in a thread."""
        config, codec = self.config, self.codec
        most = config.max_context_tokens - 1
        try:
            body = strict_json.parsed(content.decode())
        except ValueError as error:
            raise openai.BadRequest("body", f"the body is no JSON ({error}); send JSON") from error
        given = openai.read_body(body, config.model, codec.vocabulary, most, is_chat=is_chat)
        if is_chat:
            text = prompt_text.of_chat(given)
            ids = codec.encode_chat(given["messages"], given.get("chat_template_kwargs", {}))
        else:
            text = prompt_text.scored_text(prompt := given["prompt"])
            ids = codec.encode(prompt) if isinstance(prompt, str) else prompt
        if not 0 < len(ids) <= most:
            raise openai.BadRequest("prompt", f"prompt of {len(ids)} tokens; use 1 to {most}")
        room = config.max_context_tokens - len(ids)
        ends = () if given.get("ignore_eos") else codec.stop_token_ids
        # A template with thinking switched off ends with the end of an empty thought.
        return given, Leg(
            request_id=secrets.token_hex(12),
            token_ids=ids,
            prompt_tokens=len(ids),
            is_thinking=config.think_end is not None and config.think_end not in ids[-4:],
            max_tokens=min(given["max_tokens"] or room, room),
            sampling={name: given[name] for name in SAMPLING if name in given},
            stop_token_ids=(*ends, *given.get("stop_token_ids", ())),
            think_end=config.think_end,
            arrival_s=arrival_s,
            gateway=self.actor,
        ), text  # fmt: skip

    async def _pieces(
        self, request: Leg, stops: StopStrings, *, is_chat: bool
    ) -> AsyncIterator[openai.Piece]:
        """Yield the texts of the output, each with whether it is reasoning."""
        decode, token_s = self.codec.decoder(), list[float]()
        arrived = request.view(request.arrival_s)
        try:
            async with aclosing(cast(Any, self.streams.serve(request))) as counts:
                async for num_new in counts:
                    done = request.generated_tokens
                    token_s += [time.monotonic()] * num_new if self.record else ()
                    for number in range(done - num_new, done):
                        token = request.token_ids[request.prompt_tokens + number]
                        is_reasoning = number < request.thinking_tokens
                        text = decode(token)
                        if is_chat and is_reasoning and token == request.think_end:
                            yield stops.flush(), True
                            continue
                        yield stops.step(text), is_reasoning and is_chat
                        if stops.has_stopped:
                            request.cut(number + 1)
                            return
            yield stops.flush(), request.is_thinking and is_chat
        finally:
            replicas = self.streams.replicas.pop(request.request_id, [])
            if self.record is not None and request.finish:
                row = finished_row(
                    arrived,
                    token_s[: request.generated_tokens],
                    start_s=self.start_s,
                    reasoning_tokens=request.thinking_tokens,
                    instance=self.numbers.setdefault(replicas[-1], len(self.numbers)),
                    migrations=sum(one != other for one, other in pairwise(replicas)),
                )
                self.record.put(row)

    async def _events(
        self, first: openai.Piece, pieces: AsyncIterator[openai.Piece], writer: openai.Writer
    ) -> AsyncIterator[str]:
        """Yield a stream of server-sent events; a failure is its last event."""
        try:
            async with aclosing(cast(Any, pieces)):
                yield _event(writer.chunk(first))
                async for piece in pieces:
                    if piece[0]:
                        yield _event(writer.chunk(piece))
        except (Unavailable, RayTaskError) as error:
            yield _event(self._failure(error)[0])
            return
        self.counts["finished"] += 1
        for chunk in writer.end():
            yield _event(chunk)
        yield "data: [DONE]\n\n"

    def _failure(self, error: Exception) -> tuple[dict[str, Any], int]:
        self.counts["failed"] += 1
        if isinstance(error, Unavailable):
            return openai.error_body(error.status, str(error)), error.status
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, ValueError):  # engines refuse parameters by it, before any work
            return openai.error_body(400, f"the engine refuses the request: {cause}"), 400
        log.error("engine failed: %s", cause)
        return openai.error_body(500, f"the engine failed: {type(cause).__name__}: {cause}"), 500


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def build_gateway(
    engines: Any, config: GatewayConfig, make_codec: Any = TransformersCodec, **options: Any
) -> Any:
    """Return the application for `serve.run`; `options` are those of the gateway's deployment."""
    options = {
        "num_replicas": config.num_gateways,
        "max_ongoing_requests": 1000,
        "health_check_period_s": 1.0,  # a dead gateway is replaced once Ray looks for it
        "ray_actor_options": {"num_cpus": 0},
        **options,
    }
    return serve.deployment(PhaseGateway).options(**options).bind(engines, config, make_codec)


def engine_options(config: MovingConfig, *, report_s: float = 0.2) -> dict[str, Any]:
    """Return the options of the engines' deployment that set our router.

    `report_s`: time between two reports of a replica.
    """
    router = RequestRouterConfig(
        request_router_class="scheduler_adapters.routers.ray.router:PlacementRouter",
        request_router_kwargs={one.name: getattr(config, one.name) for one in fields(MovingConfig)},
        request_routing_stats_period_s=report_s,
        request_routing_stats_timeout_s=max(config.max_stale_s, report_s),
    )
    health = {"health_check_period_s": 2.0}  # three failures in a row restart a replica
    return {"max_ongoing_requests": 1000, "request_router_config": router, **health}
