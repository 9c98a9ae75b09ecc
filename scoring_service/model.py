"""A served model: bundle, tokenizer, ONNX session and calibration, replaced only as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from scoring_service.bundle import INT8, Manifest, ModelBundle
from scoring_service.calibration import LengthCurve
from scoring_service.costs import INVARIANCE, CostTable
from scoring_service.errors import BundleError, ScoringError
from scoring_service.golden import check_golden
from scoring_service.scorer import OnnxScorer, on_gpu
from scoring_service.tokenizing import PromptTokenizer


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
        if precision == "auto" and on_gpu():
            precision = "fp32"  # The quantised operators run on the CPU only.
        manifest, path = bundle.manifest, bundle.model_path(precision)
        tokenizer = PromptTokenizer(bundle.tokenizer_path, manifest.max_prompt_tokens)
        scorer = OnnxScorer(path, pad_id=tokenizer.pad_id)
        _check_fit(tokenizer, scorer, bundle)
        loaded = "int8" if path.name == INT8 else "fp32"
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
