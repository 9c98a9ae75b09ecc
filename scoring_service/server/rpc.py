"""RPCs of the scoring service: messages to calls of `ScoringService` and back."""

from functools import partial
from typing import Final

from google.protobuf.message import Message

from lengthwise.errors import ScoringError
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.status import to_status
from scoring_service.server.call_lifecycle import CallLifecycle, PromptRequest
from scoring_service.service.cache import Scored
from scoring_service.service.reports import Observation
from scoring_service.service.scoring import CallAnswer, ScoringService
from scoring_service.transport.direct import Handle

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ScoringService"].full_name
_MAX_INLINE_BYTES: Final = 2048
"""Size up to which any prompt is read in less than a millisecond."""


def scoring_methods(calls: CallLifecycle) -> dict[str, Handle]:
    """Return the handlers of `lengthwise.scoring.v1.ScoringService` by method name."""
    score = partial(calls.score, request_type=pb.ScoreRequest, read=_read)
    batch = partial(calls.score, request_type=pb.ScoreBatchRequest, read=_read_batch)
    report, info = partial(_report, calls.service), partial(_info, calls.service)
    report = partial(calls.answer, request_type=pb.ReportRequest, answer=report)
    return {
        "Score": calls.on_worker("Score", score, _MAX_INLINE_BYTES),
        "ScoreBatch": calls.on_worker("ScoreBatch", batch),
        "Report": calls.on_worker("Report", report),
        "Info": partial(calls.answer, request_type=pb.InfoRequest, answer=info),
    }


def _report(service: ScoringService, request: pb.ReportRequest) -> Message:
    observations = [
        Observation(seen.target_model, seen.output_tokens, seen.score, seen.revision, seen.prompt)
        for seen in request.observations
    ]
    return pb.ReportResponse(accepted=service.report(observations))


def _info(service: ScoringService, _: pb.InfoRequest) -> Message:
    model, config = service.model, service.config
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


def _read(request: pb.ScoreRequest) -> PromptRequest:
    return PromptRequest([request.prompt], request.target_model, _score_response)


def _read_batch(request: pb.ScoreBatchRequest) -> PromptRequest:
    return PromptRequest(list(request.prompts), request.target_model, _batch_response)


def _batch_response(answer: CallAnswer) -> Message:
    return pb.ScoreBatchResponse(
        items=[_item(item) for item in answer.items],
        revision=answer.revision,
        timings=_timings(answer),
    )


def _score_response(answer: CallAnswer) -> Message:
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
