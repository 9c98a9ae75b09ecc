"""Score -> expected response length in tokens of a named target model.

A bundle's calibration is a curve per target model: scores in increasing order, and at each the
quantiles (and, where known, the mean) of the response lengths seen around it.
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
    """One target model's calibration."""

    scores: Sequence[float]
    expected: Sequence[float]
    quantiles: Mapping[float, Sequence[float]]

    @classmethod
    def parse(cls, target_model: str, curve: Mapping[str, Any]) -> Self:
        """Read one entry of `Manifest.calibration`.

        Raises:
            BundleError: the entry breaks the format.
        """
        if not target_model or not target_model.isprintable():
            raise BundleError(
                f"calibration names the target model {target_model!r:.80}; give printable text"
            )
        try:
            scores = [float(score) for score in curve["scores"]]
            quantiles = {float(q): [float(t) for t in v] for q, v in curve["quantiles"].items()}
            expected = [float(t) for t in curve.get("mean") or quantiles[0.5]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BundleError(
                f"calibration of {target_model} is malformed ({error!r}); calibrate again"
            ) from error
        lengths = {len(scores), len(expected), *(len(tokens) for tokens in quantiles.values())}
        if len(lengths) != 1 or not scores or sorted(scores) != scores:
            raise BundleError(
                f"calibration of {target_model} needs increasing scores and as many tokens for "
                f"each, got lengths {sorted(lengths)}; calibrate again"
            )
        tokens = [token for row in (expected, *quantiles.values()) for token in row]
        are_tokens = all(0 <= token < math.inf for token in tokens)
        if not (
            are_tokens and all(map(math.isfinite, scores)) and all(0 < q < 1 for q in quantiles)
        ):
            raise BundleError(
                f"calibration of {target_model} needs finite scores, tokens of at least 0 and "
                "fractions between 0 and 1; calibrate again"
            )
        return cls(scores, expected, dict(sorted(quantiles.items())))

    def at(self, score: float) -> LengthEstimate:
        """The estimate at `score`, linear between the curve's points and constant beyond them."""
        quantiles = {q: _interpolate(score, self.scores, t) for q, t in self.quantiles.items()}
        return LengthEstimate(_interpolate(score, self.scores, self.expected), quantiles)


def _interpolate(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    right = bisect_right(xs, x)
    if right == 0:
        return ys[0]
    if right == len(xs):
        return ys[-1]
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])
