"""Served model: bundle, tokenizer, ONNX session and calibration, replaced only as a whole."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from lengthwise.agreement import tau_b
from lengthwise.bundle import INT8, LengthCurve, Manifest, ModelBundle
from lengthwise.errors import BundleError, ScoringError
from scoring_service.cost_table import INVARIANCE, CostTable
from scoring_service.ranker.scorer import OnnxScorer, has_gpu_runtime
from scoring_service.tokenizing import PromptTokenizer

logger = logging.getLogger(__name__)
MAX_ABS_DIFF: Final = 1e-3
"""Largest FP32 error of a golden score / spread of the scores; about 1e-6 in a correct export."""
MIN_TAU_B: Final = 0.6
"""Least INT8 tau_b of the golden scores; 0.9 is usual. Two unrelated rankers reach 0.6 with 32
prompts in less than one case in a million."""


@dataclass(frozen=True, slots=True)
class RankerModel:
    """One revision with all that it needs to score a prompt."""

    manifest: Manifest
    revision: str
    precision: str
    tokenizer: PromptTokenizer
    scorer: OnnxScorer
    length_curves: Mapping[str, LengthCurve]
    costs: CostTable

    @classmethod
    def load(cls, bundle: ModelBundle, precision: str = "auto") -> Self:
        """Load a verified bundle and time it on this machine. Raises BundleError for a misfit."""
        manifest = bundle.manifest
        tokenizer = PromptTokenizer.of(bundle)
        scorer, loaded = _load_scorer(bundle, precision, tokenizer.pad_id)
        _check_fit(tokenizer, scorer, bundle)
        read = dict(zip(manifest.golden, tokenizer.tokenize(list(manifest.golden)), strict=True))
        # Older versions cut prompts elsewhere.
        golden = {each: manifest.golden[each] for each in read if not read[each].truncated}
        check_golden(golden, [scorer.score([read[each].ids])[0] for each in golden], loaded)
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
        """Return the scores of tokenized prompts. Raises ScoringError."""
        return self.scorer.score(prompts)

    def score_texts(self, prompts: Sequence[str]) -> list[float]:
        """Return the score of each prompt, higher = longer, independent of the other prompts.

        Raises TypeError for one text in place of a list.
        """
        if isinstance(prompts, str):
            raise TypeError(f"prompts is one text, {prompts!r:.40}; give a list of texts")
        return [self.scorer.score([prompt.ids])[0] for prompt in self.tokenizer.tokenize(prompts)]


def load_bundle(path: str | os.PathLike[str], precision: str = "auto") -> RankerModel:
    """Verify the bundle in a folder, and load its ranker into this process.

    Args:
        path: folder of the bundle, or of the run that holds it.
        precision: "fp32", "int8", or "auto": INT8 where the bundle has it.

    Raises:
        BundleError: not a bundle, or a file is missing, damaged or a misfit.
    """
    return RankerModel.load(ModelBundle.load(path), precision)


def score_texts(bundle: str | os.PathLike[str], prompts: Sequence[str]) -> list[float]:
    """Return the scores of prompts by the bundle in a folder; `load_bundle` scores repeatedly."""
    return load_bundle(bundle).score_texts(prompts)


def _load_scorer(bundle: ModelBundle, precision: str, pad_id: int) -> tuple[OnnxScorer, str]:
    if precision in ("auto", "fp32") and has_gpu_runtime():
        scorer = OnnxScorer(bundle.model_path("fp32"), pad_id=pad_id, device="gpu")
        if scorer.device == "gpu":
            return scorer, "fp32"
        logger.warning("no GPU can be used by onnxruntime-gpu here: serving on the CPU")
    path = bundle.model_path(precision)
    return OnnxScorer(path, pad_id=pad_id), "int8" if path.name == INT8 else "fp32"


def _check_fit(tokenizer: PromptTokenizer, scorer: OnnxScorer, bundle: ModelBundle) -> None:
    try:
        scorer.score([[tokenizer.vocab_size - 1] * tokenizer.max_tokens])
    except ScoringError as error:
        raise BundleError(
            f"{bundle.path}: the model cannot score its tokenizer's {tokenizer.vocab_size} tokens "
            f"at length {tokenizer.max_tokens} ({error}); export the bundle again"
        ) from error


def check_golden(golden: Mapping[str, float], actual: Sequence[float], precision: str) -> None:
    """Raise BundleError if the loaded model does not score as the trained one did."""
    if len(golden) < 2:
        return
    expected = list(golden.values())
    if precision == "fp32":
        limit = MAX_ABS_DIFF * max(1.0, max(expected) - min(expected))
        worst = max(abs(a - b) for a, b in zip(actual, expected, strict=True))
        if worst > limit:
            raise BundleError(
                f"golden prompts score up to {worst:.2g} off, {limit:.2g} is allowed; "
                "the model or its tokenizer is not the one that was exported: export again"
            )
        return
    if not (tau := tau_b(actual, expected)) >= MIN_TAU_B:
        raise BundleError(
            f"golden prompts are in another order (tau_b {tau}, at least {MIN_TAU_B} is needed); "
            "serve fp32 or export again"
        )
