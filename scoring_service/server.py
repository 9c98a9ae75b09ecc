"""The gRPC server: translates messages to calls of `ScoringService` and back. No decisions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from scoring_service.batching import Call
from scoring_service.config import ServerConfig
from scoring_service.errors import ConfigError, InvalidPrompt, ScoringError
from scoring_service.model import RankerModel
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.security import BearerTokens, server_credentials
from scoring_service.service import Answer, Scored, ScoringService
from scoring_service.status import CODE_OF, DETAILS_KEY, to_status
from scoring_service.threads import LifoPool

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ScoringService"].full_name
_SPARE_THREADS: Final = 8
"""Beyond the calls that may score: health and reflection answer even when the service is full."""
_log = logging.getLogger(__name__)

_Handler = Callable[[Any, grpc.ServicerContext], Message]


class ScoringServer:
    """A bundle served over gRPC.

    Raises:
        ConfigError: the address is in use or cannot be bound.
    """

    def __init__(self, model: RankerModel, config: ServerConfig) -> None:
        self._config = config
        self._service = ScoringService(model, config)
        self._health = health.HealthServicer()
        num_threads = config.max_concurrent_calls + _SPARE_THREADS
        tokens = [] if config.token_file is None else [BearerTokens(config.token_file)]
        self._server = grpc.server(
            LifoPool(num_threads, "call"),
            interceptors=tokens,
            options=_options(config),
            maximum_concurrent_rpcs=num_threads,
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.port = _bind(self._server, config.address, server_credentials(config))

    @property
    def target(self) -> str:
        """HOST:PORT for clients."""
        return f"{self._config.address.rpartition(':')[0]}:{self.port}"

    def start(self) -> None:
        """Answer calls; health says SERVING."""
        self._server.start()
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """Say NOT_SERVING, refuse new calls, finish those in flight within the grace, stop."""
        self._health.enter_graceful_shutdown()
        time.sleep(self._config.drain_notice_s)
        self._server.stop(self._config.drain_grace_s).wait()

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Score": _unary(self._score, pb.ScoreRequest),
                "ScoreBatch": _unary(self._score_batch, pb.ScoreBatchRequest),
                "Info": _unary(self._info, pb.InfoRequest),
            },
        )

    def _call(self, context: grpc.ServicerContext) -> Call:
        remaining_s = context.time_remaining()
        if remaining_s is None:
            remaining_s = self._config.default_deadline_s
        call = Call(time.monotonic() + remaining_s)
        if not context.add_callback(call.cancel):
            call.cancel()
        return call

    def _score(self, request: pb.ScoreRequest, context: grpc.ServicerContext) -> Message:
        answer = self._service.score(request.prompt, request.target_model, self._call(context))
        return pb.ScoreResponse(
            scored=_scored(answer.items[0]), revision=answer.revision, timings=_timings(answer)
        )

    def _score_batch(self, request: pb.ScoreBatchRequest, context: grpc.ServicerContext) -> Message:
        answer = self._service.score_batch(
            request.prompts, request.target_model, self._call(context)
        )
        return pb.ScoreBatchResponse(
            items=[_item(item) for item in answer.items],
            revision=answer.revision,
            timings=_timings(answer),
        )

    def _info(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> Message:
        model, config = self._service.model, self._config
        return pb.InfoResponse(
            name=model.manifest.name,
            revision=model.revision,
            label=model.manifest.label,
            label_tokenizer=model.manifest.label_tokenizer,
            precision=model.precision,
            target_models=sorted(model.length_curves),
            max_prompt_tokens=model.manifest.max_prompt_tokens,
            max_prompt_bytes=config.max_prompt_bytes,
            max_batch_prompts=config.max_batch_prompts,
            max_message_bytes=config.max_message_bytes,
        )


def _unary(handle: _Handler, request_type: type[Message]) -> grpc.RpcMethodHandler:
    """A handler that parses its own request: gRPC would answer INTERNAL to a malformed one."""

    def call(serialized: bytes, context: grpc.ServicerContext) -> Message:
        try:
            return handle(_parse(request_type, serialized), context)
        except ScoringError as error:
            _abort(context, error)
        except Exception:
            _log.exception("a call failed")
            _abort(context, ScoringError("the service failed; its log says how"))

    return grpc.unary_unary_rpc_method_handler(
        call, response_serializer=lambda message: message.SerializeToString()
    )


def _parse(request_type: type[Message], serialized: bytes) -> Message:
    try:
        return request_type.FromString(serialized)
    except DecodeError as error:
        raise InvalidPrompt(
            f"the request is not a {request_type.DESCRIPTOR.full_name} ({error}); "
            "prompts must be UTF-8"
        ) from error


def _abort(context: grpc.ServicerContext, error: ScoringError) -> NoReturn:
    status = to_status(error)
    if status.details:
        context.set_trailing_metadata(((DETAILS_KEY, status.SerializeToString()),))
    context.abort(CODE_OF[type(error)], status.message)
    raise AssertionError("abort returned")


def _item(item: Scored | ScoringError) -> pb.ItemResult:
    if isinstance(item, ScoringError):
        return pb.ItemResult(error=to_status(item))
    return pb.ItemResult(scored=_scored(item))


def _scored(item: Scored | ScoringError) -> pb.ScoredPrompt:
    assert isinstance(item, Scored)
    message = pb.ScoredPrompt(
        score=item.score, prompt_tokens=item.prompt_tokens, truncated=item.truncated
    )
    if item.length is not None:
        message.length.expected_tokens = item.length.expected_tokens
        for fraction, tokens in item.length.quantiles.items():
            message.length.quantiles.add(fraction=fraction, tokens=tokens)
    return message


def _timings(answer: Answer) -> pb.StageTimings:
    timings = answer.timings
    return pb.StageTimings(
        tokenize_us=int(timings.tokenize_s * 1e6),
        queue_us=int(timings.queue_s * 1e6),
        infer_us=int(timings.infer_s * 1e6),
        total_us=int(timings.total_s * 1e6),
    )


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # Without this a second server on the same port would silently take half of the calls.
        ("grpc.so_reuseport", 0),
        # Clients ping to notice a dead server; the default would take that for abuse.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        # And the other way round: a client whose host is gone must not hold its place.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 5_000),
    ]


def _bind(server: grpc.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        if credentials is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {address}; it is in use or not an address of this machine: "
            "stop the other server, or use another port (0 takes any free one)"
        ) from error
