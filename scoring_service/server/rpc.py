"""The RPCs: messages to calls of `ScoringService` and back. No decisions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from scoring_service.errors import AccessDenied, InvalidPrompt, ScoringError
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.server.direct import FOREVER_S, DirectCall
from scoring_service.server.metrics import Metrics
from scoring_service.server.security import NO_TOKEN, BearerTokens
from scoring_service.server.streaming import UnorderedMap
from scoring_service.server.threads import LifoPool
from scoring_service.service.batching import Call
from scoring_service.service.reports import Observation
from scoring_service.service.scoring import Answer, Scored, ScoringService
from scoring_service.status import CODE_OF, DETAILS_KEY, to_status

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ScoringService"].full_name
_FAILED: Final = "the service failed; its log says how"
_log = logging.getLogger(__name__)
Context: TypeAlias = grpc.ServicerContext


def unary(
    metrics: Metrics, handle: Callable[[Any, Context], Message], request_type: type[Message]
) -> grpc.RpcMethodHandler:
    """A counted method whose errors become their statuses.

    Requests come as bytes and are parsed here: gRPC itself would answer INTERNAL to malformed ones.
    """
    method = request_type.DESCRIPTOR.name.removesuffix("Request")

    def call(serialized: bytes, context: Context) -> Message:
        try:
            response = handle(parse(request_type, serialized), context)
        except ScoringError as error:
            metrics.count_call(method, CODE_OF[type(error)].name)
            abort(context, error)
        except Exception:
            _log.exception("%s failed", method)
            metrics.count_call(method, grpc.StatusCode.INTERNAL.name)
            abort(context, ScoringError(_FAILED))
        metrics.count_call(method, "OK")
        return response

    return grpc.unary_unary_rpc_method_handler(call, response_serializer=_serialize)


class ScoringRpcs:
    """The handlers of `lengthwise.scoring.v1.ScoringService`."""

    def __init__(
        self,
        service: ScoringService,
        metrics: Metrics,
        workers: LifoPool,
        tokens: BearerTokens | None,
    ) -> None:
        """`tokens` are asked for calls that pass no interceptor."""
        self._service = service
        self._metrics = metrics
        self._workers = workers
        self._tokens = tokens

    def handlers(self) -> grpc.GenericRpcHandler:
        """To add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Score": unary(self._metrics, self._score, pb.ScoreRequest),
                "ScoreBatch": unary(self._metrics, self._score_batch, pb.ScoreBatchRequest),
                "Report": unary(self._metrics, self._report, pb.ReportRequest),
                "Info": unary(self._metrics, self._info, pb.InfoRequest),
                "ScoreStream": grpc.stream_stream_rpc_method_handler(
                    self._score_stream, response_serializer=_serialize
                ),
            },
        )

    def score_directly(self, direct: DirectCall, serialized: bytes) -> None:
        """`Score` without a thread of its own."""
        deadline_s = direct.deadline_s
        if deadline_s is None:
            deadline_s = time.monotonic() + self._service.config.default_deadline_s
        call = Call(deadline_s)
        direct.on_cancel = call.cancel
        try:
            if self._tokens is not None and not self._tokens.know(direct.metadata):
                raise AccessDenied(NO_TOKEN)
            request = parse(pb.ScoreRequest, serialized)
            on_answer = partial(self._respond, direct)
            self._service.begin([request.prompt], request.target_model, call, on_answer)
        except ScoringError as error:
            self._fail(direct, error)

    def _respond(self, direct: DirectCall, answer: Answer) -> None:
        (item,) = answer.items
        if isinstance(item, ScoringError):
            self._fail(direct, item)
            return
        try:
            response = _serialize(_score_response(answer))
        except Exception:
            _log.exception("Score failed")
            self._fail(direct, ScoringError(_FAILED))
            return
        direct.respond(response)
        self._metrics.observe(answer)
        self._metrics.count_call("Score", "OK")

    def _fail(self, direct: DirectCall, error: ScoringError) -> None:
        status = to_status(error)
        trailing = ((DETAILS_KEY, status.SerializeToString()),) if status.details else None
        direct.fail(CODE_OF[type(error)], status.message, trailing)
        self._metrics.count_call("Score", CODE_OF[type(error)].name)

    def _score(self, request: pb.ScoreRequest, context: Context) -> Message:
        answer = self._service.score(request.prompt, request.target_model, self._call(context))
        self._metrics.observe(answer)
        return _score_response(answer)

    def _score_batch(self, request: pb.ScoreBatchRequest, context: Context) -> Message:
        answer = self._service.score_batch(
            request.prompts, request.target_model, self._call(context)
        )
        self._metrics.observe(answer)
        return pb.ScoreBatchResponse(
            items=[_item(item) for item in answer.items],
            revision=answer.revision,
            timings=_timings(answer),
        )

    def _report(self, request: pb.ReportRequest, context: Context) -> Message:
        observations = [
            Observation(
                seen.target_model, seen.output_tokens, seen.score, seen.revision, seen.prompt
            )
            for seen in request.observations
        ]
        return pb.ReportResponse(accepted=self._service.report(observations))

    def _info(self, request: pb.InfoRequest, context: Context) -> Message:
        model, config = self._service.model, self._service.config
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

    def _score_stream(self, requests: Iterator[bytes], context: Context) -> Iterator[Message]:
        try:
            with self._service.stream_place():
                parsed = (self._arrived(parse(pb.StreamRequest, s)) for s in requests)
                limit = self._service.config.max_stream_prompts
                answers = UnorderedMap(self._answer_one, self._workers, limit)
                if context.add_callback(answers.close):
                    yield from answers.run(parsed)
                if answers.error is not None:
                    raise answers.error
        except ScoringError as error:
            self._metrics.count_call("ScoreStream", CODE_OF[type(error)].name)
            abort(context, error)
        self._metrics.count_call("ScoreStream", "OK")

    def _arrived(self, request: pb.StreamRequest) -> tuple[pb.StreamRequest, Call]:
        """A prompt of a stream and its deadline, which runs from now."""
        timeout_s = request.timeout_ms / 1e3 or self._service.config.default_deadline_s
        return request, Call(time.monotonic() + timeout_s)

    def _answer_one(self, arrived: tuple[pb.StreamRequest, Call]) -> Message:
        """One prompt of a stream; its failure is its own."""
        request, call = arrived
        try:
            answer = self._service.score_batch([request.prompt], request.target_model, call)
        except ScoringError as error:
            return pb.StreamResponse(id=request.id, result=_item(error))
        except Exception:
            _log.exception("a prompt of a stream failed")
            failure = ScoringError(_FAILED)
            return pb.StreamResponse(id=request.id, result=_item(failure))
        self._metrics.observe(answer)
        return pb.StreamResponse(
            id=request.id,
            result=_item(answer.items[0]),
            revision=answer.revision,
            timings=_timings(answer),
        )

    def _call(self, context: Context) -> Call:
        return call_of(context, self._service.config.default_deadline_s)


def call_of(context: Context, default_deadline_s: float) -> Call:
    """The caller behind a gRPC context: its deadline, and its cancellation."""
    remaining_s = context.time_remaining()
    if remaining_s is None or remaining_s > FOREVER_S:
        remaining_s = default_deadline_s
    call = Call(time.monotonic() + remaining_s)
    if not context.add_callback(call.cancel):
        call.cancel()
    return call


def parse(request_type: type[Message], serialized: bytes) -> Any:
    """Bytes as a message. Raises InvalidPrompt if they are not one."""
    try:
        return request_type.FromString(serialized)
    except DecodeError as error:
        raise InvalidPrompt(
            f"the request is not a {request_type.DESCRIPTOR.full_name} ({error}); "
            "prompts must be UTF-8"
        ) from error


def abort(context: Context, error: ScoringError) -> NoReturn:
    """End the call with the status of `error`."""
    status = to_status(error)
    if status.details:
        context.set_trailing_metadata(((DETAILS_KEY, status.SerializeToString()),))
    context.abort(CODE_OF[type(error)], status.message)
    raise AssertionError("abort returned")


def _score_response(answer: Answer) -> Message:
    return pb.ScoreResponse(
        scored=_scored(answer.items[0]), revision=answer.revision, timings=_timings(answer)
    )


def _serialize(message: Message) -> bytes:
    return bytes(message.SerializeToString())


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
