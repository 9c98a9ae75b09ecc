"""Scores for `LLM.generate` and `LLM.chat`, requested for all prompts before they are submitted.

    llm = LLM(MODEL, scheduler_cls="scheduler_adapters.engines.vllm_v1.pars")
    with ScoringClient("127.0.0.1:50051", timeout_s=5) as client:
        params = score_params(SamplingParams(max_tokens=512), prompts, client)
    outputs = llm.generate(prompts, params)

Imports no engine.
"""

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from math import isfinite
from typing import Any, Protocol, TypeVar

from lengthwise.errors import ConfigError
from lengthwise.tables import prompt_text
from scheduler_adapters.planner.request_annotations import SCORE, score_annotations
from scoring_service.client import Score, ScoringClient

log = logging.getLogger(__name__)


class SamplingParams(Protocol):
    """The part of vLLM's `SamplingParams` that is read and set."""

    extra_args: dict[str, Any] | None


Params = TypeVar("Params", bound=SamplingParams)


def score_params(
    params: Params | Sequence[Params], prompts: Sequence[Any], client: ScoringClient
) -> list[Params]:
    """Return parameters for each prompt, in their order, with its score; an existing one is kept.

    They also carry the quantiles of its length if the client has a `target_model`. A prompt without
    a score is ranked by the median of the others. Raises ConfigError for another number of
    parameters than prompts.

    Args:
        params: one for all prompts, or one for each; not changed.
        prompts: as for `LLM.generate` (text, {"prompt": text}, token ids) or `LLM.chat` (lists of
            messages); token ids are not scored.
    """
    each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise ConfigError(f"{len(each)} params for {len(prompts)} prompts; give one, or one each")
    texts = {
        row: text
        for row, prompt in enumerate(prompts)
        if SCORE not in (each[row].extra_args or {}) and (text := _text(prompt)) is not None
    }
    results = dict(zip(texts, client.score_batch(list(texts.values())), strict=True))
    scores = {
        row: result
        for row, result in results.items()
        if isinstance(result, Score) and isfinite(result.value)
    }
    if lacking := len(results) - len(scores):
        why = next(result for row, result in results.items() if row not in scores)
        log.warning("%d of %d prompts have no score (%s)", lacking, len(prompts), why)
    return [_with_score(one, scores.get(row)) for row, one in enumerate(each)]


def _text(prompt: Any) -> str | None:
    if isinstance(prompt, Mapping):
        prompt = prompt.get("prompt")
    elif isinstance(prompt, list) and prompt and isinstance(prompt[0], Mapping):
        return prompt_text.of_messages(prompt)
    return prompt_text.start_of(prompt)


def _with_score(params: Params, score: Score | None) -> Params:
    made = copy(params)
    if score is not None:
        made.extra_args = score_annotations(score.value, score.quantiles) | (
            params.extra_args or {}
        )
    return made
