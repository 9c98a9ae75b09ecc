"""Rank quality of an engine's own answers, and the order of arrival while scores are useless.

A step only notes which requests arrive and end. A thread makes the figures and decides. Imports no
engine.
"""

import logging
from collections.abc import Callable, Sequence
from math import isnan, nan
from typing import Final

from lengthwise.agreement import figure_text
from lengthwise.bundle import Manifest
from lengthwise.live.rank_quality import FRACTIONS, Answer, Promise, RankQuality
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
_MOST_OPEN: Final = 16_384
_ENDS: Final = ("low", "high")
_NO_ANSWER: Final = Answer(nan, nan)


class RankWatch(EngineObserver):
    """Figures of an engine's answers in order of arrival; switches `fallback`, if there is one.

    Args:
        ranker: returns the manifest of the present ranker. A new revision starts with the requests
            that arrive after it is seen, in the order of its scores.
        fallback: None: the scores order in any case.
        target_model: model of the calibration; None: its first one.
        reads_lengths: True if the policy reads quantiles: a change of lengths ends its order, too.
        is_apart: False: the figures are made in the step, for simulations.
    """

    def __init__(
        self,
        ranker: Callable[[], Manifest],
        fallback: ArrivalFallback | None = None,
        *,
        target_model: str | None = None,
        reads_lengths: bool = False,
        is_apart: bool = True,
    ) -> None:
        self.reason = ""
        """The one of `REASONS` for which arrival orders, or would without an option."""
        self._ranker, self._fallback, self._target_model = ranker, fallback, target_model
        self._ending = ("order", "lengths") if reads_lengths else ("order",)
        self._first = self._newest = 0
        self._open: dict[int, Answer | None] = {}
        """Receive number -> answer, None before the end; from the first without an end on."""
        self._start(ranker())
        self._writer = BackgroundWriter("rank quality", self._count) if is_apart else None

    def _start(self, manifest: Manifest) -> None:
        self._quality = RankQuality(Promise.of(manifest, self._target_model))
        self.revision, self.figures = manifest.revision, self._quality.figures()
        self._alarms = dict.fromkeys(_PROMISED, False)
        self._order_by("")

    def queued(self, request: RequestView, now_s: float) -> None:
        self._newest = request.number
        self._open[request.number] = None
        if len(self._open) > _MOST_OPEN:
            self._open[next(iter(self._open))] = _NO_ANSWER

    def finished(self, request: RequestView, now_s: float) -> None:
        self._left(request, is_cut=request.generated_tokens >= request.limits[1])

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        self._left(request, is_cut=True)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _left(self, request: RequestView, *, is_cut: bool) -> None:
        number, (least, most) = request.number, request.limits
        is_own = request.score is not None and least < most
        if number in self._open:
            size = request.generated_tokens, is_cut, request.prompt_tokens, most
            self._open[number] = Answer(request.score or 0.0, *size) if is_own else _NO_ANSWER
        ended = []
        while self._open and (answer := next(iter(self._open.values()))) is not None:
            ended.append((next(iter(self._open)), answer))
            del self._open[ended[-1][0]]
        if ended and self._writer is not None:
            self._writer.put(ended)
        elif ended:
            self._count([ended])

    def _count(self, groups: Sequence[list[tuple[int, Answer]]]) -> None:
        if (manifest := self._ranker()).revision != self.revision:
            self._first = self._newest + 1
            self._start(manifest)
        ended = [one for group in groups for one in group]
        self._quality.add(answer for number, answer in ended if number >= self._first)
        self.figures = figures = self._quality.figures()
        for kind, was_on in self._alarms.items():
            self._alarms[kind] = self._quality.is_recent(kind)
            if self._alarms[kind] and not was_on:
                log.warning("ranker %s breaks its promise about %s", self.revision, _PROMISED[kind])
        low, ahead = figures.interval[0], figures.over_prompt
        holds = {
            "alarm": any(self._alarms[kind] for kind in self._ending),
            "chance": low <= (_BACK_ABOVE if self.reason else 0),
            "prompt": ahead[1] < 0 or (self.reason != "" and sum(ahead) < 0),
        }
        if figures.num_answers >= _FEWEST and not isnan(low):
            self._order_by(next((name for name in REASONS if holds[name]), ""))

    def _order_by(self, reason: str) -> None:
        if bool(reason) != bool(self.reason):
            order = "by arrival" if reason and self._fallback is not None else "by score"
            tau_b, low = map(figure_text, (self.figures.tau_b, self.figures.interval[0]))
            found = f"{reason or 'no reason against it'}, tau_b {tau_b} from {low}"
            log.warning("requests are ordered %s (ranker %s: %s)", order, self.revision, found)
        self.reason = reason
        if self._fallback is not None:
            self._fallback.is_wanted = bool(reason)

    def samples(self) -> list[tuple[str, str, float]]:
        """Return metric, label and value of each figure that is defined."""
        figures, by_arrival = self.figures, self.reason if self._fallback is not None else ""
        found = [
            ("rank_answers", "", figures.num_answers),
            *(("rank_alarm", kind, is_on) for kind, is_on in self._alarms.items()),
            ("arrival_order", by_arrival, bool(by_arrival)),
            ("rank_tau_b", "", figures.tau_b),
            *zip(("rank_tau_b",) * 2, _ENDS, figures.interval, strict=True),
            *zip(("rank_over_prompt",) * 2, _ENDS, figures.over_prompt, strict=True),
            *zip(("rank_coverage",) * 2, map(str, FRACTIONS), figures.coverage, strict=True),
        ]
        return [(name, label, value) for name, label, value in found if not isnan(value)]
