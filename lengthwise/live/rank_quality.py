"""Quality of a ranker's newest scores: tau_b with an interval, coverage, costly inversions, alarms.

Give the answers in the order in which their requests arrived. The first to finish are short, and
under a learned order requests of like scores finish together: both would look like a change.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lengthwise.bundle import LengthCurve, Manifest
from lengthwise.live.drift import DriftCharts

WINDOW: Final = 1000
"""Answers in the figures; the standard error of tau_b is then about .02."""
RUN_LENGTH: Final = 1_000_000
"""Average number of answers up to a false alarm of each kind, at least."""
FRACTIONS: Final = (0.5, 0.9)
"""Quantiles whose coverage is watched."""
_FEWEST, _PARTNERS, _BLOCK = 20, 128, 64
"""Answers of the first figure, answers before each one that it is compared with, and answers that
are counted at once."""
_APART: Final = 32  # of a pair in the chart: the samples of one prompt arrive together
_NONE: Final = (math.nan, math.nan)


class Answer(NamedTuple):
    """One answer, its score, and times in seconds on any clock."""

    score: float
    """Higher = longer."""
    tokens: float
    """Length; a lower bound if `is_cut`."""
    is_cut: bool = False
    prompt_tokens: float = math.nan
    limit: float = math.inf
    """Most tokens that the request allows."""
    queued_s: float = math.nan
    started_s: float = math.nan
    finished_s: float = math.nan


class RankFigures(NamedTuple):
    """Rank quality of a window. NaN is undefined; intervals are of 95%."""

    num_answers: int = 0
    tau_b: float = math.nan
    """Ties of scores count by chance; pairs whose order a cut leaves open do not count."""
    interval: tuple[float, float] = _NONE
    over_prompt: tuple[float, float] = _NONE
    """Interval of tau_b less that of the prompt's length as a score."""
    coverage: tuple[float, ...] = _NONE
    """Shares of the lengths up to the quantiles `FRACTIONS`."""
    costly_inversions: float = math.nan
    """Of requests that waited together: difference of the service times in pairs that started
    longest first, as a share of that in all pairs."""


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
        name = target_model or next(iter(manifest.calibration), "")
        entry = manifest.calibration.get(name)
        curve = LengthCurve.parse(name, entry) if entry else None
        if manifest.label != "output_tokens" or not isinstance(tau_b, float):
            return cls()
        if entry is None or curve is None or not curve.quantiles.keys() >= set(FRACTIONS):
            return cls(tau_b)
        return cls(tau_b, curve, int(entry.get("rows") or 0))


class RankQuality:
    """Figures of the newest `WINDOW` answers of one ranker, and alarms against its promise.

    The intervals are Hoeffding's projection: by the variance of the answers' own parts of tau_b.
    """

    def __init__(self, promise: Promise) -> None:
        self.num_seen = 0
        self.alarms: dict[str, int] = {}
        """Kind of alarm ("order", "lengths") -> `num_seen` at the newest one."""
        self._curve = promise.curve
        self._columns = np.full((7 + len(FRACTIONS), WINDOW), math.nan)
        """Of each answer what `_row` returns, and whether its length is up to the quantiles."""
        self._sums = np.zeros((6, WINDOW))
        """Of each answer the sums over its pairs, as `_compare` has them."""
        self._charts: dict[str, DriftCharts] = {}
        if not math.isnan(promise.tau_b):
            self._charts["order"] = DriftCharts([promise.tau_b], RUN_LENGTH)
        if promise.rows > 0:
            q = np.array(FRACTIONS)
            error = 3 * np.sqrt(q * (1 - q) / promise.rows)
            means = np.concatenate((q - error, 1 - q - error))
            self._charts["lengths"] = DriftCharts(means, RUN_LENGTH)

    def add(self, answers: Sequence[Answer]) -> None:
        """Count answers in order of arrival; one without a finite score and length is left out."""
        usable = [one for one in answers if math.isfinite(one.score) and 0 <= one.tokens < math.inf]
        for start in range(0, len(usable), _BLOCK):
            self._add_block(usable[start : start + _BLOCK])

    def is_recent(self, kind: str) -> bool:
        """Return whether an alarm of that kind is among the answers of the window."""
        return self.num_seen - self.alarms.get(kind, -WINDOW) < WINDOW

    def figures(self) -> RankFigures:
        """Return the figures of the window; undefined below 20 answers, or for equal lengths."""
        count = min(self.num_seen, WINDOW)
        order, countable, ordered, by_prompt, wrong_s, waited_s = self._sums[:, :count]
        covered = self._columns[7:, :count]
        if count < _FEWEST or not ordered.any():
            return RankFigures(count)
        with np.errstate(invalid="ignore"):  # 0 / 0 is undefined
            return RankFigures(
                count,
                *_tau_b(order, countable, ordered),
                _tau_b(order - by_prompt, countable, ordered)[1],
                tuple((np.nansum(covered, axis=1) / (covered >= 0).sum(axis=1)).tolist()),
                float(wrong_s.sum() / waited_s.sum()),
            )

    def _add_block(self, block: Sequence[Answer]) -> None:
        numbers = np.arange(max(0, self.num_seen - _PARTNERS), self.num_seen + len(block))
        self.num_seen += len(block)
        num_earlier = len(numbers) - len(block)
        earlier, own = np.split(numbers % WINDOW, [num_earlier])
        new = np.array([_row(one) for one in block]).T
        covered = self._covered(new[0], block)
        self._columns[:, own] = np.vstack((new, covered.T))
        pairs = _compare(new, self._columns[:7, numbers % WINDOW])
        self._sums[:, own] = pairs.sum(2)
        self._sums[:, earlier] += pairs[:, :, :num_earlier].sum(1)
        # Pairs without a common answer: each is independent of the others.
        later = np.flatnonzero(numbers[num_earlier:] % (2 * _APART) >= _APART)
        signs, _, is_ordered = pairs[:3, later, num_earlier + later - _APART]
        values = np.full((len(block), 1), math.nan)
        values[later, 0] = np.where(is_ordered > 0, signs, math.nan)
        for kind, seen in ("order", values), ("lengths", np.hstack((covered, 1 - covered))):
            if kind in self._charts and self._charts[kind].add(seen):
                self.alarms[kind] = self.num_seen

    def _covered(self, scores: NDArray[np.float64], block: Sequence[Answer]) -> NDArray[np.float64]:
        """Return whether lengths are up to their quantiles. Shape (answers, fractions).

        NaN: unknown. So are quantiles above half of a request's limit, which moves its score.
        """
        found = np.full((len(block), len(FRACTIONS)), math.nan)
        if (curve := self._curve) is not None:
            tokens, is_cut, limit = np.array([(a.tokens, a.is_cut, a.limit) for a in block]).T
            for column, fraction in zip(found.T, FRACTIONS, strict=True):
                predicted = np.interp(scores, curve.scores, curve.quantiles[fraction])
                is_open = (2 * predicted > limit) | ((tokens <= predicted) & (is_cut > 0))
                column[:] = np.where(is_open, math.nan, tokens <= predicted)
        return found


def _tau_b(
    order: NDArray[np.float64], countable: NDArray[np.float64], ordered: NDArray[np.float64]
) -> tuple[float, tuple[float, float]]:
    """Return tau_b and its interval by the sums of each answer."""
    num_countable, num_ordered = countable.sum(), ordered.sum()
    scale = math.sqrt(num_countable * num_ordered)
    tau_b = float(order.sum() / scale)
    parts = order / scale - tau_b / 2 * (countable / num_countable + ordered / num_ordered)
    half = 1.96 * 2 * math.sqrt(float(parts @ parts))
    return tau_b, (tau_b - half, tau_b + half)


def _row(one: Answer) -> tuple[float, ...]:
    """Return score, prompt's length, least and most length, times of queue and start, duration."""
    least, most = (one.tokens + 0.5, math.inf) if one.is_cut else (one.tokens, one.tokens)
    service_s = max(0.0, one.finished_s - one.started_s)  # clocks jump
    return one.score, one.prompt_tokens, least, most, one.queued_s, one.started_s, service_s


def _compare(new: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return figures of the pairs of N new answers with M others, the new ones last. Shape (6, N,
    M), 0 for an answer with itself.

    Agreement of score and length (1, 0, -1), whether it is known which length is greater or that
    both are equal, whether one is greater, agreement of prompt and length; difference of the
    service times where the longer one started first, and in all pairs that waited together.
    """
    score, prompt, least, most, queued_s, started_s, service_s = (
        (column[:, None], other[None]) for column, other in zip(new, others, strict=True)
    )
    # Results are written in place: memory for new arrays would take most of the time.
    found = np.empty((7, new.shape[1], others.shape[1]), np.float32)
    order, countable, ordered, by_prompt, wrong_s, waited_s, length = found
    np.subtract(least[0] > most[1], most[0] < least[1], out=length, dtype=np.float32)
    np.abs(length, out=ordered)
    np.add(ordered, least[0] == most[1], out=countable)
    np.multiply(_sign(score, order), length, out=order)
    np.multiply(_sign(prompt, by_prompt), length, out=by_prompt)
    np.subtract(*service_s, out=length)
    np.abs(length, out=waited_s)
    waited_s *= (queued_s[0] < started_s[1]) & (queued_s[1] < started_s[0])
    np.multiply(_sign(started_s, wrong_s), length, out=wrong_s)
    np.multiply(waited_s, wrong_s < 0, out=wrong_s)
    own = np.arange(new.shape[1])
    found[:, own, own - new.shape[1]] = 0
    return found[:6]


def _sign(pair: tuple[NDArray[Any], NDArray[Any]], out: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.subtract(pair[0] > pair[1], pair[0] < pair[1], out=out, dtype=np.float32)
