"""Score -> expected response length in tokens of a named target model.

A bundle's calibration is a curve per target model: increasing scores, and at each score the
quantiles (and, where known, the mean) of the response lengths around it.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lengthwise.errors import BundleError


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """Response length of one target model, tokens."""

    expected_tokens: float
    quantiles: Mapping[float, float]
    """Fraction in (0, 1) -> tokens."""


@dataclass(frozen=True, slots=True)
class LengthCurve:
    """Calibration of one target model."""

    scores: Sequence[float]
    expected: Sequence[float]
    quantiles: Mapping[float, Sequence[float]]

    @classmethod
    def parse(cls, target_model: str, curve: Mapping[str, Any]) -> Self:
        """Read one entry of `Manifest.calibration`. Raises BundleError if it breaks the format."""
        about = f"calibration of {target_model!r:.80}"
        try:
            scores = [float(score) for score in curve["scores"]]
            quantiles = {float(q): [float(t) for t in v] for q, v in curve["quantiles"].items()}
            expected = [float(t) for t in curve.get("mean") or quantiles[0.5]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BundleError(f"{about} is malformed ({error!r}); calibrate again") from error
        rows = [expected, *quantiles.values()]
        are_scores = bool(scores) and sorted(scores) == scores and all(map(math.isfinite, scores))
        are_tokens = all(len(r) == len(scores) and all(0 <= t < math.inf for t in r) for r in rows)
        are_fractions = all(0 < fraction < 1 for fraction in quantiles)
        is_name = bool(target_model) and target_model.isprintable()
        if not (are_scores and are_tokens and are_fractions and is_name):
            raise BundleError(
                f"{about} needs a printable name, increasing finite scores, as many tokens of at "
                "least 0, and fractions between 0 and 1; calibrate again"
            )
        return cls(scores, expected, dict(sorted(quantiles.items())))

    def at(self, score: float) -> LengthEstimate:
        """Return the estimate at `score`: linear between points, constant beyond the ends."""
        right = bisect_right(self.scores, score)
        low, high = max(right - 1, 0), min(right, len(self.scores) - 1)
        width = self.scores[high] - self.scores[low]
        share = (score - self.scores[low]) / width if low < high else 0.0

        def between(tokens: Sequence[float]) -> float:
            return tokens[low] + share * (tokens[high] - tokens[low])

        quantiles = {fraction: between(tokens) for fraction, tokens in self.quantiles.items()}
        return LengthEstimate(between(self.expected), quantiles)
