"""RPCs of the scoring service: messages to calls of `ScoringService` and back."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from google.protobuf.message import Message

from lengthwise.errors import ScoringError
from lengthwise.tables.prompt_text import RequestText
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.status import to_status
from scoring_service.server.call_lifecycle import Method, PromptRequest
from scoring_service.service.call_results import Scored
from scoring_service.service.reports import Observation
from scoring_service.service.scoring import CallAnswer, ScoringService

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ScoringService"].full_name
_MAX_INLINE_BYTES: Final = 2048
"""Size up to which any prompt is read in less than a millisecond."""


def scoring_methods(service: ScoringService) -> dict[str, Method]:
    """Return the methods of `lengthwise.scoring.v1.ScoringService` by name."""

    def read(request: pb.ScoreRequest) -> PromptRequest:
        prompts = _texts([request.prompt], [request.description])
        return PromptRequest(prompts, request.target_model, _score_response)

    def read_batch(request: pb.ScoreBatchRequest) -> PromptRequest:
        prompts = _texts(request.prompts, request.descriptions)
        return PromptRequest(prompts, request.target_model, _batch_response)

    return {
        "Score": Method(pb.ScoreRequest, read, _MAX_INLINE_BYTES),
        "ScoreBatch": Method(pb.ScoreBatchRequest, read_batch, 0),
        "Report": Method(pb.ReportRequest, partial(_report, service), 0),
        "Info": Method(pb.InfoRequest, partial(_info, service)),
    }


def _texts(prompts: Sequence[str], descriptions: Sequence[str]) -> list[RequestText]:
    texts = list(map(RequestText, prompts))
    for text, description in zip(texts, descriptions, strict=False):
        text.body = description
    return texts


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


def _batch_response(answer: CallAnswer) -> Message:
    items = [
        pb.ItemResult(error=to_status(item))
        if isinstance(item, ScoringError)
        else pb.ItemResult(scored=_scored(item))
        for item in answer.items
    ]
    return pb.ScoreBatchResponse(items=items, revision=answer.revision, timings=_timings(answer))


def _score_response(answer: CallAnswer) -> Message:
    (item,) = answer.items
    if isinstance(item, ScoringError):
        raise item
    return pb.ScoreResponse(
        scored=_scored(item), revision=answer.revision, timings=_timings(answer)
    )


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
    tokenize_s, queue_s, infer_s, total_s = answer.timings
    return pb.StageTimings(
        tokenize_us=int(tokenize_s * 1e6),
        queue_us=int(queue_s * 1e6),
        infer_us=int(infer_s * 1e6),
        total_us=int(total_s * 1e6),
    )
