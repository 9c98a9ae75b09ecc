"""Rank quality of an engine's own answers, and the order of arrival while scores are useless.

A step only notes which requests arrive, start and end. A thread makes the figures and decides.
Imports no engine.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lengthwise.agreement import figure_text
from lengthwise.live.rank_quality import FRACTIONS, Answer, Promise, RankFigures, RankQuality
from scheduler_adapters.policies.fcfs import ArrivalFallback
from scheduler_adapters.timeline.background import BackgroundWriter
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import RequestView

log = logging.getLogger(__name__)

REASONS: Final = ("alarm", "chance", "prompt")
"""Why arrival orders: an alarm, a tau_b that may be 0, a prompt's length that orders better."""
_PROMISED: Final = {"order": "the order of lengths", "lengths": "quantiles of lengths"}
_FEWEST: Final = 200
"""Answers from which on a window may change the order."""
_BACK_ABOVE: Final = 0.05
"""Least lower end of tau_b at which scores order again."""
_TOGETHER, _WITHIN_S = 64, 5.0
_MOST_OPEN: Final = 16_384


@dataclass(slots=True)
class _Request:
    """Times of a request, and its answer once it has left; without a score None."""

    queued_s: float
    started_s: float = nan
    has_left: bool = False
    answer: Answer | None = None


class RankWatch(EngineObserver, Collector):
    """Figures of an engine's answers in order of arrival; switches `fallback`, if there is one.

    Args:
        promised: returns the present revision of the ranker and its promise. A new revision starts
            with the requests that arrive after it is seen.
        has_predicted: returns whether the score of a request, by its receive number, is its own.
        reads_lengths: True if the policy reads quantiles: a change of lengths is an alarm, too.
        is_apart: False: the figures are made in the step, for simulations.
    """

    def __init__(
        self,
        promised: Callable[[], tuple[str, Promise]],
        fallback: ArrivalFallback | None = None,
        *,
        has_predicted: Callable[[int], bool] = lambda number: True,
        reads_lengths: bool = False,
        is_apart: bool = True,
    ) -> None:
        self.figures, self.revision, self.reason = RankFigures(), "", ""
        """`reason`: the one of `REASONS` for which arrival orders, or would without an option."""
        self.alarms = dict.fromkeys(_PROMISED, False)
        self.engine = "0"
        self._promised, self._fallback, self._has_predicted = promised, fallback, has_predicted
        self._alarms = ("order", "lengths") if reads_lengths else ("order",)
        self._quality: RankQuality | None = None
        self._open: dict[int, _Request] = {}
        """Receive number -> request, in order of arrival, from the first that has not left on."""
        self._newest = self._first = 0
        self._pending: list[tuple[int, Answer]] = []
        self._next_s = 0.0
        self._writer = BackgroundWriter("rank quality", self._count) if is_apart else None

    def queued(self, request: RequestView, now_s: float) -> None:
        self._newest = request.number
        self._open[request.number] = _Request(now_s)
        if len(self._open) > _MOST_OPEN:
            next(iter(self._open.values())).has_left = True

    def admitted(self, request: RequestView, now_s: float) -> None:
        if (one := self._open.get(request.number)) is not None and isnan(one.started_s):
            one.started_s = now_s

    def finished(self, request: RequestView, now_s: float) -> None:
        self._left(request, now_s, is_cut=request.generated_tokens >= request.limits[1])

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        self._left(request, now_s, is_cut=True)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _left(self, request: RequestView, now_s: float, *, is_cut: bool) -> None:
        if (one := self._open.get(request.number)) is None:
            return
        one.has_left, (least, most) = True, request.limits
        if self._has_predicted(request.number) and request.score is not None and least < most:
            times = one.queued_s, one.started_s, now_s
            size = request.generated_tokens, is_cut, request.prompt_tokens, most
            one.answer = Answer(request.score, *size, *times)
        answers = []
        while self._open and self._open[number := next(iter(self._open))].has_left:
            if (answer := self._open.pop(number).answer) is not None:
                answers.append((number, answer))
        if self._writer is not None and answers:
            self._writer.put(answers)
        elif answers:
            self._count([answers])

    def _count(self, groups: Sequence[list[tuple[int, Answer]]]) -> None:
        """Count answers, many at once or after some seconds; few would cost as much."""
        self._pending += [one for group in groups for one in group]
        now_s = time.monotonic()
        if len(self._pending) < _TOGETHER and self._writer is not None and now_s < self._next_s:
            return
        revision, promise = self._promised()
        if self._quality is None or revision != self.revision:
            self._first = self._newest + 1 if self._quality is not None else 0
            self.revision, self._quality = revision, RankQuality(promise)
        self._quality.add([answer for number, answer in self._pending if number >= self._first])
        self._pending, self._next_s = [], now_s + _WITHIN_S
        for kind, was_on in self.alarms.items():
            self.alarms[kind] = self._quality.is_recent(kind)
            if self.alarms[kind] and not was_on:
                log.warning("ranker %s breaks its promise about %s", revision, _PROMISED[kind])
        self.figures = self._quality.figures()
        self._decide(self.figures)

    def _decide(self, figures: RankFigures) -> None:
        low, ahead = figures.interval[0], figures.over_prompt
        holds = {
            "alarm": any(self.alarms[kind] for kind in self._alarms),
            "chance": low <= (_BACK_ABOVE if self.reason else 0),
            "prompt": ahead[1] < 0 or (self.reason != "" and sum(ahead) < 0),
        }
        is_known = figures.num_answers >= _FEWEST and not isnan(low)
        reason = next((name for name in REASONS if holds[name]), "") if is_known else self.reason
        if bool(reason) != bool(self.reason):
            order = "by arrival" if reason and self._fallback is not None else "by score"
            tau_b = figure_text(figures.tau_b)
            found = f"{reason or 'no reason against it'}, tau_b {tau_b} from {low:.3f}"
            log.warning("requests are ordered %s (ranker %s: %s)", order, self.revision, found)
        self.reason = reason
        if self._fallback is not None:
            self._fallback.is_wanted = bool(reason)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for a registry; undefined values are left out."""
        figures, ends = self.figures, ("low", "high")
        tau_b = {"": figures.tau_b, **dict(zip(ends, figures.interval, strict=True))}
        ahead = dict(zip(ends, figures.over_prompt, strict=True))
        covered = dict(zip(map(str, FRACTIONS), figures.coverage, strict=True))
        inverted = {"": figures.costly_inversions}
        by_arrival = self.reason if self._fallback is not None else ""
        for name, about, label, values in (
            ("rank_answers", "Answers in the figures.", "of", {"": figures.num_answers}),
            ("rank_tau_b", "Scores against lengths, and its interval.", "end", tau_b),
            ("rank_over_prompt", "tau_b less that of the prompts' lengths.", "end", ahead),
            ("rank_coverage", "Share of lengths up to a quantile.", "quantile", covered),
            ("rank_costly_inversions", "Service time in the wrong order.", "of", inverted),
            ("rank_alarm", "1: answers break what the ranker promises.", "about", self.alarms),
            ("arrival_order", "1: arrival orders.", "reason", {by_arrival: bool(by_arrival)}),
        ):
            family = GaugeMetricFamily(
                f"lengthwise_{name}", about, labels=("engine", "revision", label)
            )
            for key, value in values.items():
                if not isnan(value):
                    family.add_metric((self.engine, self.revision, key), value)
            yield family
