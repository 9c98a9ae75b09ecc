"""Golden prompts: a few scores of the trained model, to be met before a bundle serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scoring_service.agreement import tau_b
from scoring_service.errors import BundleError

MAX_ABS_DIFF: Final = 1e-3
"""In FP32, of the scores' spread; a correct export differs by about 1e-6 of it."""
MIN_TAU_B: Final = 0.6
"""In INT8, where values move; 0.9 is usual, and two unrelated rankers reach 0.6 of 32 prompts in
less than one case in a million."""


def check_golden(
    golden: Mapping[str, float], score: Callable[[Sequence[str]], Sequence[float]], precision: str
) -> None:
    """Raises BundleError if the loaded model does not score as the trained one did."""
    if len(golden) < 2:
        return
    expected, actual = list(golden.values()), list(score(list(golden)))
    if precision == "fp32":
        limit = MAX_ABS_DIFF * max(1.0, max(expected) - min(expected))
        worst = max(abs(a - b) for a, b in zip(actual, expected, strict=True))
        if worst > limit:
            raise BundleError(
                f"golden prompts score up to {worst:.2g} off, {limit:.2g} is allowed; "
                "the model or its tokenizer is not the one that was exported: export again"
            )
        return
    tau = tau_b(actual, expected)
    if not tau >= MIN_TAU_B:
        raise BundleError(
            f"golden prompts come in another order (tau_b {tau}, at least {MIN_TAU_B} is asked); "
            "serve fp32 or export again"
        )
