"""Latencies of a live engine: gaps between tokens, TTFT, QoE, pacers.

A reader takes one answering token per `tbt_s`. Earlier tokens are held in the request's *pacer*.
QoE is that of `qoe.py`.

Source: Andes' QoE as PASCAL restricts it to answering tokens.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import ceil, inf
from operator import sub
from typing import Final

from scheduler_adapters.timeline.observer import RunObserver
from scheduler_adapters.views import Phase, RequestView

TBT_BUCKETS_S: Final = (
    0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip
DEFAULT_TBT_S: Final = 0.1
"""TBT target of requests without one: PASCAL's reading speed."""
MAX_CLASSES: Final = 50
"""Largest number of classes; further ones count as `OTHER_CLASS`."""
OTHER_CLASS: Final = "other"
# Names of their own: to look one up in the enumeration takes ten times as long.
_PREFILL, _REASONING, _ANSWERING = Phase.PREFILL, Phase.REASONING, Phase.ANSWERING
_bucket_of = partial(bisect_left, TBT_BUCKETS_S)


@dataclass(slots=True)
class _Served:
    """Tokens of a started request, and of its reader."""

    arrival_s: float
    queueing_s: float
    pace_s: float
    user_class: str
    phase: Phase
    """From the first token on."""
    num_tokens: int = 0
    first_s: float = inf
    last_s: float = inf
    thought_s: float | None = None
    num_answering: int = 0
    first_shown_s: float = inf
    shown_s: float = -inf
    sum_shown_s: float = 0.0


class TokenClock(RunObserver[_Served]):
    """Measures the tokens of started requests.

    If it `thinks`, tokens are reasoning tokens up to the reported end of thinking.
    """

    def __init__(self, thinks: bool = False) -> None:
        super().__init__()
        self._first_phase = _REASONING if thinks else _ANSWERING
        self._queued_s: dict[str, float] = {}
        """Times of requests that have not started."""
        self.classes = set[str]()
        """User classes that are counted apart."""
        # These three are of the tokens taken since their reader emptied them.
        self.tbt_counts = Counter[tuple[str, Phase, int]]()
        """Gaps by class, phase and bucket; the last bucket has no upper edge."""
        self.tbt_sums_s = defaultdict[tuple[str, Phase], float](float)
        self.latencies: list[tuple[str, str, float]] = []
        """(metric, class, value): first answers, finished requests."""

    def queued(self, request: RequestView, now_s: float) -> None:
        self._queued_s[request.request_id] = now_s

    def admitted(self, request: RequestView, now_s: float) -> None:
        if request.request_id not in self.open:
            self.open[request.request_id] = _Served(
                request.arrival_s,
                now_s - self._queued_s.pop(request.request_id, now_s),
                DEFAULT_TBT_S if request.tbt_s is None else request.tbt_s,
                self._counted_class(request.user_class),
                self._first_phase,
            )

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        self.take(request.request_id)
        if (one := self.open.get(request.request_id)) and one.phase is _REASONING:
            one.phase = _ANSWERING
            one.thought_s = now_s if one.num_tokens else None

    def finished(self, request: RequestView, now_s: float) -> None:
        self.take(request.request_id)
        if (one := self.open.get(request.request_id)) and one.num_tokens:
            values = _latencies(one) | {"preemptions": request.preemptions}
            self.latencies += [(metric, one.user_class, each) for metric, each in values.items()]
        self.withdrawn(request, now_s)

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        super().withdrawn(request, now_s)
        self._queued_s.pop(request.request_id, None)

    def took(self, one: _Served, step_s: list[float], each: int) -> None:
        gaps_s = map(sub, step_s, chain((one.last_s,), step_s))
        if not one.num_tokens:
            one.first_s = one.last_s = step_s[0]
            next(gaps_s)
        for bucket, count in Counter(map(_bucket_of, gaps_s)).items():
            self.tbt_counts[one.user_class, one.phase, bucket] += count
        self.tbt_sums_s[one.user_class, one.phase] += step_s[-1] - one.last_s
        one.last_s = step_s[-1]
        one.num_tokens += each * len(step_s)
        if one.phase is _ANSWERING:
            self._answer(one, step_s, each)

    def _answer(self, one: _Served, step_s: list[float], each: int) -> None:
        if not one.num_answering:
            one.first_shown_s = step_s[0]
            since = {"first_answer_seconds": one.arrival_s, "ttfat_seconds": one.thought_s}
            self.latencies += [
                (metric, one.user_class, step_s[0] - from_s)
                for metric, from_s in since.items()
                if from_s is not None
            ]
        pace_s = one.pace_s
        # The reader takes the tokens of one step in turn.
        token_s = step_s if each == 1 else [now_s for now_s in step_s for _ in range(each)]
        shown_s = one.shown_s
        read_s = [shown_s := max(now_s, shown_s + pace_s) for now_s in token_s]
        one.shown_s = shown_s
        one.sum_shown_s += sum(read_s)
        one.num_answering += len(read_s)

    def phase(self, request_id: str) -> Phase:
        """Return PREFILL up to the first token, then REASONING or ANSWERING."""
        self.take(request_id)
        one = self.open.get(request_id)
        return one.phase if one is not None and one.num_tokens else _PREFILL

    def pacers(self, now_s: float) -> tuple[int, int, int]:
        """Return the number of pacers with tokens, of empty pacers, and of all held tokens."""
        self.take_all()
        answering = [one for one in self.open.values() if one.num_answering]
        num_empty = sum(now_s >= one.shown_s + one.pace_s for one in answering)
        held = sum(ceil(max(0.0, one.shown_s - now_s) / one.pace_s) for one in answering)
        return len(answering) - num_empty, num_empty, held

    def num_answers_below(self, num_tokens: int) -> int:
        """Return the number of answering requests with fewer than `num_tokens` answering tokens."""
        self.take_all()
        return sum(
            one.phase is _ANSWERING and one.num_tokens > 0 and one.num_answering < num_tokens
            for one in self.open.values()
        )

    def user_class(self, request_id: str) -> str:
        """Return the class in which the request is counted; "" before its first step."""
        one = self.open.get(request_id)
        return "" if one is None else one.user_class

    def _counted_class(self, user_class: str) -> str:
        if user_class not in self.classes and len(self.classes) >= MAX_CLASSES:
            user_class = OTHER_CLASS
        self.classes.add(user_class)
        return user_class


def _latencies(one: _Served) -> dict[str, float]:
    """Return the latencies of a finished request by metric."""
    values = {
        "queueing_seconds": one.queueing_s,
        "ttft_seconds": one.first_s - one.arrival_s,
        "e2e_seconds": one.last_s - one.arrival_s,
    }
    if one.num_tokens > 1:
        values["tpot_seconds"] = (one.last_s - one.first_s) / (one.num_tokens - 1)
    if count := one.num_answering:
        total_s = count * (one.shown_s + one.pace_s)
        expected_s = count * one.first_shown_s + one.pace_s * count * (count - 1) / 2
        values["qoe"] = (total_s - one.sum_shown_s) / (total_s - expected_s)
    return values
