"""The champion of a registered model: a version replaces it only if it is provably better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lengthwise.agreement import tau_b
from lengthwise.bundle import ModelBundle
from training.data.labels import observed, texts
from training.evaluation.ranking_metrics import tau_b_difference_ci
from training.export.bundle_scores import score_prompts

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True, slots=True)
class Promotion:
    """The verdict on a challenger, with its reason."""

    promoted: bool
    reason: str
    difference_ci: tuple[float, float] | None = None
    """95% paired bootstrap interval of the gain in tau_b; None without a comparison."""


def judge(challenger: ModelBundle, champion: ModelBundle | None, test: Dataset) -> Promotion:
    """Compare both on the challenger's test prompts, which the champion must not have seen.

    A draw keeps the champion: replacing it costs a reload and gains nothing. Without a champion,
    the tau_b of the challenger's manifest on the same prompts must be above chance.
    """
    figures = challenger.manifest.metrics
    if champion is None:
        low, high = figures.get("tau_b_ci") or (None, None)
        if low is None:
            return Promotion(False, "its tau_b is not known or undefined; promote by hand")
        interval = f"tau_b {figures['tau_b']:+.4f}, 95% interval {low:+.4f} to {high:+.4f}"
        if low > 0:
            return Promotion(True, f"the first champion: {interval}")
        return Promotion(False, f"not proven better than chance: {interval}; train on more prompts")
    mine, theirs = (_training_rule(bundle) for bundle in (challenger, champion))
    if mine != theirs:
        return Promotion(
            False,
            f"not comparable: the champion was split by {theirs}, this one by {mine}; it "
            "may have been trained on these test prompts; promote by hand",
        )
    lengths = observed(test)
    scores, others = (score_prompts(bundle, texts(test)) for bundle in (challenger, champion))
    gain = tau_b(scores, lengths) - tau_b(others, lengths)
    if math.isnan(gain):
        return Promotion(False, "not comparable: one tau_b is undefined; promote by hand")
    low, high = tau_b_difference_ci(scores, others, lengths)
    verb = "beats" if low > 0 else "does not beat"
    reason = f"{verb} the champion: tau_b {gain:+.4f}, 95% interval {low:+.4f} to {high:+.4f}"
    return Promotion(low > 0, reason, (low, high))


def _training_rule(bundle: ModelBundle) -> dict[str, object]:
    split = bundle.manifest.training["split"]
    rule = {key: split[key] for key in ("seed", "val_fraction", "test_fraction")}
    return rule | {"label": bundle.manifest.label}
