"""A served model: bundle, tokenizer, ONNX session and calibration, replaced only as a whole."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from scoring_service.bundle import INT8, Manifest, ModelBundle
from scoring_service.calibration import LengthCurve
from scoring_service.costs import INVARIANCE, CostTable
from scoring_service.errors import BundleError, ScoringError
from scoring_service.ranker.golden import check_golden
from scoring_service.ranker.scorer import OnnxScorer, has_gpu_runtime
from scoring_service.tokenizing import PromptTokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankerModel:
    """Everything that one revision needs to score a prompt."""

    manifest: Manifest
    revision: str
    precision: str
    tokenizer: PromptTokenizer
    scorer: OnnxScorer
    length_curves: Mapping[str, LengthCurve]
    costs: CostTable

    @classmethod
    def load(cls, bundle: ModelBundle, precision: str = "auto") -> Self:
        """Load a verified bundle, see that its parts fit, and time it on this machine.

        Raises:
            BundleError: a file is no tokenizer or model, or the two do not fit each other.
        """
        manifest = bundle.manifest
        tokenizer = PromptTokenizer(bundle.tokenizer_path, manifest.max_prompt_tokens)
        scorer, loaded = _load_scorer(bundle, precision, tokenizer.pad_id)
        _check_fit(tokenizer, scorer, bundle)
        check_golden(manifest.golden, partial(_score_alone, tokenizer, scorer), loaded)
        return cls(
            manifest=manifest,
            revision=manifest.revision,
            precision=loaded,
            tokenizer=tokenizer,
            scorer=scorer,
            length_curves={m: LengthCurve.parse(m, c) for m, c in manifest.calibration.items()},
            costs=CostTable.measure(
                scorer.score,
                tokenizer.max_tokens,
                tokenizer.vocab_size,
                scorer.device,
                tolerance=0.0 if loaded == "int8" else INVARIANCE,
            ),
        )

    def score(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Scores of tokenized prompts. Raises ScoringError."""
        return self.scorer.score(prompts)


def _load_scorer(bundle: ModelBundle, precision: str, pad_id: int) -> tuple[OnnxScorer, str]:
    """On the GPU where there is one, in FP32: the quantised operators run on the CPU only."""
    if precision in ("auto", "fp32") and has_gpu_runtime():
        scorer = OnnxScorer(bundle.model_path("fp32"), pad_id=pad_id, device="gpu")
        if scorer.device == "gpu":
            return scorer, "fp32"
        logger.warning("no GPU can be used by onnxruntime-gpu here: serving on the CPU")
    path = bundle.model_path(precision)
    return OnnxScorer(path, pad_id=pad_id), "int8" if path.name == INT8 else "fp32"


def _score_alone(
    tokenizer: PromptTokenizer, scorer: OnnxScorer, prompts: Sequence[str]
) -> list[float]:
    return [scorer.score([prompt.ids])[0] for prompt in tokenizer.tokenize(prompts)]


def _check_fit(tokenizer: PromptTokenizer, scorer: OnnxScorer, bundle: ModelBundle) -> None:
    """Run the longest prompt of the largest token id: both reach the edge of the model's tables."""
    try:
        scorer.score([[tokenizer.vocab_size - 1] * tokenizer.max_tokens])
    except ScoringError as error:
        raise BundleError(
            f"{bundle.path}: the model cannot score its tokenizer's {tokenizer.vocab_size} tokens "
            f"at length {tokenizer.max_tokens} ({error}); export the bundle again"
        ) from error
