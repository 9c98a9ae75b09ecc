"""The RPCs of the scoring service: messages to calls of `ScoringService` and back."""

import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import grpc
from google.protobuf.message import Message

from lengthwise.errors import InvalidPrompt, ScoringError, ScoringTimeout, ServiceOverloaded
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.status import abort, to_status
from scoring_service.server.call_lifecycle import Asked, Calls, Context, parse, serialize, told_of
from scoring_service.service.batching import Call
from scoring_service.service.reports import Observation
from scoring_service.service.scoring import CallAnswer, Scored
from scoring_service.transport.blocked_calls import Waiting
from scoring_service.transport.direct import DirectCall, Handle, Places
from scoring_service.transport.streaming import UnorderedMap

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ScoringService"].full_name
_MAX_INLINE_BYTES: Final = 2048
"""A prompt of so many bytes takes less than a millisecond to read, whatever it is."""
_MAX_ID_CHARS: Final = 256


class _Arrived(NamedTuple):
    """One prompt of a stream."""

    id: str
    prompt: str | InvalidPrompt
    """As much of it as is read, or why it cannot be scored."""
    target_model: str
    call: Call


@dataclass(eq=False)
class _Stream:
    """An open stream."""

    context: Context
    answers: UnorderedMap[_Arrived, Message]


class ScoringRpcs:
    """The handlers of `lengthwise.scoring.v1.ScoringService`."""

    def __init__(self, calls: Calls, workers: Executor, places: Places) -> None:
        """`workers` read and answer streams."""
        self._calls = calls
        self._service = calls.service
        self._config = calls.service.config
        self._workers = workers
        self._places = places
        self.silent: Waiting[_Stream] = Waiting(
            self._end_silence,
            timeout_s=self._config.stream_idle_s,
            max_waiting=self._config.max_streams + 1,
        )
        """Open streams by their last request or answer."""

    def methods(self) -> dict[str, Handle]:
        """Name of each unary method -> how a call of it is handled."""
        calls = self._calls
        batch = partial(calls.direct, request_type=pb.ScoreBatchRequest, read=_read_batch)
        report = partial(calls.answer, request_type=pb.ReportRequest, answer=self._report)
        return {
            "Score": calls.on_worker("Score", self._score, _MAX_INLINE_BYTES),
            "ScoreBatch": calls.on_worker("ScoreBatch", batch),
            "Report": calls.on_worker("Report", report),
            "Info": partial(calls.answer, request_type=pb.InfoRequest, answer=self._info),
        }

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers of streams, to add to a server."""
        stream = grpc.stream_stream_rpc_method_handler(
            self._score_stream, response_serializer=serialize
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"ScoreStream": stream})

    def _score(self, direct: DirectCall, serialized: bytes) -> None:
        self._calls.direct(direct, serialized, pb.ScoreRequest, _read)

    def _report(self, request: pb.ReportRequest) -> Message:
        observations = [
            Observation(
                seen.target_model, seen.output_tokens, seen.score, seen.revision, seen.prompt
            )
            for seen in request.observations
        ]
        return pb.ReportResponse(accepted=self._service.report(observations))

    def _info(self, request: pb.InfoRequest) -> Message:
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
            with self._stream_place(context):
                answers = UnorderedMap(
                    self._answer_one, self._workers, self._config.max_stream_prompts
                )
                stream = _Stream(context, answers)
                try:
                    if context.add_callback(answers.close):
                        self.silent.enter(stream)
                        for answer in answers.run(self._prompts(requests, stream)):
                            self.silent.enter(stream)
                            yield answer
                finally:
                    self.silent.leave(stream)
                    self._places.leaving.leave(context)
                if answers.error is not None:
                    raise answers.error
        except Exception as error:
            abort(context, self._calls.failed("ScoreStream", error))
        self._calls.succeeded("ScoreStream")

    @contextmanager
    def _stream_place(self, context: Context) -> Iterator[None]:
        """A place for a stream; where none is free, the most silent stream is ended."""
        with ExitStack() as place:
            place.enter_context(self._calls.stream_place(context.invocation_metadata()))
            try:
                place.enter_context(self._service.stream_place())
            except ServiceOverloaded:
                self.silent.give_way(self._config.arrival_timeout_s)
                raise
            yield

    def _end_silence(self, stream: _Stream) -> None:
        stream.answers.end(
            ScoringTimeout(
                "the stream was silent too long; open one when there are prompts, or use ScoreBatch"
            )
        )
        # Its thread may be stuck with an answer that the client does not read.
        self._places.leaving.enter(stream.context)

    def _prompts(self, requests: Iterator[bytes], stream: _Stream) -> Iterator[_Arrived]:
        """The prompts of a stream, each with its deadline, which runs from now."""
        for serialized in requests:
            self.silent.enter(stream)
            request = parse(pb.StreamRequest, serialized)
            if len(request.id) > _MAX_ID_CHARS:
                raise InvalidPrompt(
                    f"an id has {len(request.id)} characters; send at most {_MAX_ID_CHARS}"
                )
            timeout_s = request.timeout_ms / 1e3
            call = self._calls.caller(time.monotonic() + timeout_s if timeout_s else None)
            prompt = self._service.start_of(request.prompt)
            yield _Arrived(request.id, prompt, request.target_model, call)

    def _answer_one(self, arrived: _Arrived) -> Message:
        """One prompt of a stream; its failure is its own."""
        try:
            if isinstance(arrived.prompt, InvalidPrompt):
                raise arrived.prompt
            answer = self._calls.score([arrived.prompt], arrived.target_model, arrived.call)
        except Exception as error:
            told = told_of("a prompt of a stream", error)
            return pb.StreamResponse(id=arrived.id, result=_item(told))
        return pb.StreamResponse(
            id=arrived.id,
            result=_item(answer.items[0]),
            revision=answer.revision,
            timings=_timings(answer),
        )


def _read(request: pb.ScoreRequest) -> Asked:
    return Asked([request.prompt], request.target_model, _score_response)


def _read_batch(request: pb.ScoreBatchRequest) -> Asked:
    return Asked(list(request.prompts), request.target_model, _batch_response)


def _batch_response(answer: CallAnswer) -> Message:
    return pb.ScoreBatchResponse(
        items=[_item(item) for item in answer.items],
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
