"""The RPCs of the scoring service: messages to calls of `ScoringService` and back."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Final

import grpc
from google.protobuf.message import Message

from scoring_service.errors import ScoringError
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.status import abort, to_status
from scoring_service.server.calls import Calls, Context, parse, serialize, told_of
from scoring_service.server.direct import DirectCall
from scoring_service.server.streaming import UnorderedMap
from scoring_service.service.batching import Call
from scoring_service.service.reports import Observation
from scoring_service.service.scoring import CallAnswer, Scored

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ScoringService"].full_name


class ScoringRpcs:
    """The handlers of `lengthwise.scoring.v1.ScoringService`."""

    def __init__(self, calls: Calls, workers: Executor) -> None:
        """`workers` read and answer streams."""
        self._calls = calls
        self._service = calls.service
        self._workers = workers

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers to add to a server."""
        unary = self._calls.unary
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Score": unary(self._score, pb.ScoreRequest),
                "ScoreBatch": unary(self._score_batch, pb.ScoreBatchRequest),
                "Report": unary(self._report, pb.ReportRequest),
                "Info": unary(self._info, pb.InfoRequest),
                "ScoreStream": grpc.stream_stream_rpc_method_handler(
                    self._score_stream, response_serializer=serialize
                ),
            },
        )

    def score_directly(self, direct: DirectCall, serialized: bytes) -> None:
        """`Score` without a thread of its own."""
        self._calls.direct(direct, serialized, pb.ScoreRequest, self._begin, _score_response)

    def _begin(
        self, request: pb.ScoreRequest, call: Call, on_answer: Callable[[CallAnswer], None]
    ) -> None:
        self._service.begin([request.prompt], request.target_model, call, on_answer)

    def _score(self, request: pb.ScoreRequest, context: Context) -> Message:
        call = self._calls.caller_of(context)
        return _score_response(self._calls.score([request.prompt], request.target_model, call))

    def _score_batch(self, request: pb.ScoreBatchRequest, context: Context) -> Message:
        call = self._calls.caller_of(context)
        answer = self._calls.score(request.prompts, request.target_model, call)
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
        except Exception as error:
            abort(context, self._calls.failed("ScoreStream", error))
        self._calls.succeeded("ScoreStream")

    def _arrived(self, request: pb.StreamRequest) -> tuple[pb.StreamRequest, Call]:
        """A prompt of a stream and its deadline, which runs from now."""
        timeout_s = request.timeout_ms / 1e3
        return request, self._calls.caller(time.monotonic() + timeout_s if timeout_s else None)

    def _answer_one(self, arrived: tuple[pb.StreamRequest, Call]) -> Message:
        """One prompt of a stream; its failure is its own."""
        request, call = arrived
        try:
            answer = self._calls.score([request.prompt], request.target_model, call)
        except Exception as error:
            told = told_of("a prompt of a stream", error)
            return pb.StreamResponse(id=request.id, result=_item(told))
        return pb.StreamResponse(
            id=request.id,
            result=_item(answer.items[0]),
            revision=answer.revision,
            timings=_timings(answer),
        )


def _score_response(answer: CallAnswer) -> Message:
    """The response to a single prompt. Raises the error of a prompt without a score."""
    (item,) = answer.items
    if isinstance(item, ScoringError):
        raise item
    return pb.ScoreResponse(
        scored=_scored(item), revision=answer.revision, timings=_timings(answer)
    )


def _item(item: Scored | ScoringError) -> pb.ItemResult:
    if isinstance(item, ScoringError):
        return pb.ItemResult(error=to_status(item))
    return pb.ItemResult(scored=_scored(item))


def _scored(item: Scored) -> pb.ScoredPrompt:
    message = pb.ScoredPrompt(
        score=item.score, prompt_tokens=item.prompt_tokens, truncated=item.truncated
    )
    if item.length is not None:
        message.length.expected_tokens = item.length.expected_tokens
        for fraction, tokens in item.length.quantiles.items():
            message.length.quantiles.add(fraction=fraction, tokens=tokens)
    return message


def _timings(answer: CallAnswer) -> pb.StageTimings:
    timings = answer.timings
    return pb.StageTimings(
        tokenize_us=int(timings.tokenize_s * 1e6),
        queue_us=int(timings.queue_s * 1e6),
        infer_us=int(timings.infer_s * 1e6),
        total_us=int(timings.total_s * 1e6),
    )
