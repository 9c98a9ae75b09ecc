"""Scores of many prompts: each its own, whatever it was batched with and on whichever core."""

import random
from collections.abc import Sequence

import pytest

from lengthwise.bundle import ModelBundle
from lengthwise.errors import ScoringError
from scoring_service.ranker.scorer import OnnxScorer
from training.export.bundle_scores import onnx_scores


def test_every_prompt_gets_its_own_score(tiny_bundle: ModelBundle) -> None:
    scorer = OnnxScorer(tiny_bundle.model_path("fp32"))
    draw = random.Random(1)
    ids = [draw.choices(range(4, 30), k=draw.randint(2, 20)) for _ in range(203)]
    alone = [scorer.score([prompt])[0] for prompt in ids]
    assert onnx_scores(scorer, ids) == pytest.approx(alone, abs=1e-6)


def test_a_batch_that_fails_is_not_passed_over(tiny_bundle, monkeypatch):
    scorer = OnnxScorer(tiny_bundle.model_path("fp32"))
    score = scorer.score

    def failing(prompts: Sequence[Sequence[int]]) -> list[float]:
        if len(prompts[0]) == 9:
            raise ScoringError("no 9")
        return score(prompts)

    monkeypatch.setattr(scorer, "score", failing)
    with pytest.raises(ScoringError, match="no 9"):
        onnx_scores(scorer, [[5] * size for size in range(2, 12) for _ in range(16)])
