"""Which model serves: the alias is taken by beating the champion, or chance where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoring_service.bundle import ModelBundle
from training.data.prepared import split_rule
from training.evaluation.metrics import tau_b, tau_b_difference_ci
from training.export.scores import score_prompts


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the challenger is promoted, and why."""

    promoted: bool
    reason: str
    difference_ci: tuple[float, float] | None = None
    """95% paired bootstrap interval of the gain in tau_b; None where nothing was compared."""


def judge(
    challenger: ModelBundle,
    champion: ModelBundle | None,
    prompts: Sequence[str],
    lengths: NDArray[np.float64],
) -> Verdict:
    """Compare both on the challenger's test prompts, which the champion must not have seen.

    A draw keeps the champion: replacing it costs a reload and gains nothing. Where there is none,
    the challenger must beat chance by what its manifest says of the same prompts.
    """
    if champion is None:
        return _beats_chance(challenger)
    mine, theirs = (_what_may_be_trained_on(bundle) for bundle in (challenger, champion))
    if mine != theirs:
        return Verdict(
            False,
            f"not comparable: the champion was split by {theirs}, this one by {mine}; it "
            "may have been trained on these test prompts; promote by hand",
        )
    scores = score_prompts(challenger, prompts)
    others = score_prompts(champion, prompts)
    gain = tau_b(scores, lengths) - tau_b(others, lengths)
    low, high = tau_b_difference_ci(scores, others, lengths)
    verb = "beats" if low > 0 else "does not beat"
    reason = f"{verb} the champion: tau_b {gain:+.4f}, 95% interval {low:+.4f} to {high:+.4f}"
    return Verdict(low > 0, reason, (low, high))


def _beats_chance(challenger: ModelBundle) -> Verdict:
    figures = challenger.manifest.metrics
    low, high = figures.get("tau_b_ci") or (None, None)
    if low is None:
        return Verdict(False, "its tau_b on the test prompts is not known; promote by hand")
    interval = f"tau_b {figures['tau_b']:+.4f}, 95% interval {low:+.4f} to {high:+.4f}"
    if low > 0:
        return Verdict(True, f"the first champion: {interval}")
    return Verdict(False, f"not proven better than chance: {interval}; train on more prompts")


def _what_may_be_trained_on(bundle: ModelBundle) -> dict[str, object]:
    return split_rule(bundle.manifest.training) | {"label": bundle.manifest.label}
