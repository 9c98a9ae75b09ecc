"""Quality of a ranker's newest scores: tau_b with an interval, coverage of quantiles, alarms.

Give the answers in the order in which their requests arrived. The first to finish are short, and
under a learned order requests of like scores finish together: both would look like a change.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Self

from lengthwise.bundle import LengthCurve, Manifest

WINDOW: Final = 1000
"""Answers in the figures. By their pairs the standard error of tau_b is about .04."""
RUN_LENGTH: Final = 1_000_000
"""Average number of pairs, or of answers, up to a false alarm of each kind, at least."""
FRACTIONS: Final = (0.5, 0.9)
"""Quantiles whose coverage is watched."""
_FEWEST: Final = 10  # pairs of the first figure
_APART: Final = 16  # of a pair: the samples of one prompt arrive together
_BETS: Final = (0.2, 0.6)
"""Shares of the largest bet: the small one finds small falls, the large one large falls soon."""
_NONE: Final = (math.nan, math.nan)


class Answer(NamedTuple):
    """One answer and its score."""

    score: float
    """Higher = longer."""
    tokens: float
    """Length; a lower bound if `is_cut`."""
    is_cut: bool = False
    prompt_tokens: float = math.nan
    limit: float = math.inf
    """Most tokens that the request allows."""

    def is_longer(self, other: "Answer") -> bool:
        """Return whether this answer is longer for sure."""
        at_least = self.tokens >= other.tokens if self.is_cut else self.tokens > other.tokens
        return at_least and not other.is_cut


class RankFigures(NamedTuple):
    """Rank quality of a window. NaN is undefined; intervals are of 95%."""

    num_answers: int = 0
    tau_b: float = math.nan
    """Ties of scores count as 0; pairs with equal lengths, or whose order a cut hides, do not."""
    interval: tuple[float, float] = _NONE
    over_prompt: tuple[float, float] = _NONE
    """Interval of tau_b less that of the prompt's length as a score."""
    coverage: tuple[float, ...] = _NONE
    """Shares of the lengths up to the quantiles `FRACTIONS`. Cuts below a quantile do not count,
    nor do quantiles above half of a request's limit, which moves its score."""


class Promise(NamedTuple):
    """Figures of a ranker on prompts outside its training."""

    tau_b: float = math.nan
    """Lower end of its interval."""
    curve: LengthCurve | None = None
    rows: int = 0
    """Answers that the curve was calibrated with; 0: unknown."""

    @classmethod
    def of(cls, manifest: Manifest, target_model: str | None = None) -> Self:
        """Return what a manifest promises, for its first target model where none is named."""
        tau_b: Any = (manifest.metrics.get("tau_b_ci") or [manifest.metrics.get("tau_b")])[0]
        if manifest.label != "output_tokens" or not isinstance(tau_b, float):
            return cls()
        if (name := target_model or next(iter(manifest.calibration), None)) is None:
            return cls(tau_b)
        entry = manifest.calibration[name]
        return cls(tau_b, LengthCurve.parse(name, entry), int(entry.get("rows") or 0))


_NO_PROMISE: Final = Promise()


class DriftChart:
    """Chart that raises an alarm once values, at most 1, fall below a mean.

    While the mean of each value, given all earlier ones, is at least `mean`, the expected number of
    values up to the first alarm is at least `run_length`. NaN: no alarm.

    Source: Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change
    detection", 2024: the Shiryaev-Roberts e-detector, here with a mixture of two bets.
    """

    def __init__(self, mean: float, run_length: float) -> None:
        self._mean, self._limit = min(mean, 0.99), run_length * len(_BETS)
        self._evidence = [0.0] * len(_BETS)

    def add(self, value: float) -> bool:
        """Count a value; return whether it raises an alarm, which starts the chart anew."""
        gain = (self._mean - value) / (1 - self._mean)
        pairs = zip(_BETS, self._evidence, strict=True)
        self._evidence = [(before + 1) * (1 + bet * gain) for bet, before in pairs]
        if is_alarm := sum(self._evidence) >= self._limit:
            self._evidence = [0.0] * len(_BETS)
        return is_alarm


class RankQuality:
    """Figures of the newest `WINDOW` answers of one ranker, and alarms against its promise.

    No two pairs of answers share one, so they are independent.
    """

    def __init__(self, promise: Promise = _NO_PROMISE) -> None:
        self.num_seen = 0
        self.alarms: dict[str, int] = {}
        """Kind of alarm ("order", "lengths") -> `num_seen` at the newest one."""
        self._curve = promise.curve
        self._earlier: deque[Answer] = deque()
        self._pairs: deque[tuple[int, int]] = deque(maxlen=WINDOW // 2)
        """Agreement of score and length (1, 0, -1), and of prompt and length."""
        self._within = {fraction: deque[bool](maxlen=WINDOW) for fraction in FRACTIONS}
        self._order = DriftChart(promise.tau_b, RUN_LENGTH)
        self._lengths = {}
        for q in FRACTIONS if promise.rows else ():
            error = 3 * math.sqrt(q * (1 - q) / promise.rows)
            means = q - error, 1 - q - error
            self._lengths[q] = [DriftChart(mean, 2 * len(FRACTIONS) * RUN_LENGTH) for mean in means]

    def is_recent(self, kind: str) -> bool:
        """Return whether an alarm of that kind is among the answers of the window."""
        return self.num_seen - self.alarms.get(kind, -WINDOW) < WINDOW

    def add(self, answers: Iterable[Answer]) -> None:
        """Count answers in order of arrival; one without a finite score and length is left out."""
        for one in answers:
            if not (math.isfinite(one.score) and 0 <= one.tokens < math.inf):
                continue
            self.num_seen += 1
            if self._curve is not None:
                self._cover(one, self._curve)
            if (self.num_seen - 1) // _APART % 2:
                self._pair(self._earlier.popleft(), one)
            else:
                self._earlier.append(one)

    def figures(self) -> RankFigures:
        """Return the figures of the window; undefined below 10 pairs."""
        count = min(self.num_seen, WINDOW)
        if len(self._pairs) < _FEWEST:
            return RankFigures(count)
        shares = [sum(one) / len(one) if one else math.nan for one in self._within.values()]
        ahead = _mean([order - by_prompt for order, by_prompt in self._pairs])[1]
        return RankFigures(count, *_mean([order for order, _ in self._pairs]), ahead, tuple(shares))

    def _cover(self, one: Answer, curve: LengthCurve) -> None:
        quantiles = curve.at(one.score).quantiles
        for fraction, within in self._within.items():
            most = quantiles.get(fraction, math.nan)
            if 2 * most <= one.limit and (one.tokens > most or not one.is_cut):
                within.append(is_within := one.tokens <= most)
                charts = zip(
                    self._lengths.get(fraction, ()), (is_within, not is_within), strict=False
                )
                if any([chart.add(value) for chart, value in charts]):
                    self.alarms["lengths"] = self.num_seen

    def _pair(self, one: Answer, other: Answer) -> None:
        if not (length := one.is_longer(other) - other.is_longer(one)):
            return
        columns = (one.score, other.score), (one.prompt_tokens, other.prompt_tokens)
        order, by_prompt = (((a > b) - (a < b)) * length for a, b in columns)
        self._pairs.append((order, by_prompt))
        if self._order.add(order):
            self.alarms["order"] = self.num_seen


def _mean(values: Sequence[int]) -> tuple[float, tuple[float, float]]:
    """Return the mean of independent values, and its interval."""
    count, mean = len(values), sum(values) / len(values)
    half = 1.96 * math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return mean, (mean - half, mean + half)
