"""Latencies of a live engine: gaps between tokens, TTFT, QoE, pacers.

A reader takes one answering token per `tbt_s`. Earlier tokens are held in the request's *pacer*.
QoE is that of `qoe.py`. The residents of a step are updated together, in arrays.

Source: Andes' QoE as PASCAL restricts it to answering tokens.
"""

from collections.abc import Sequence
from math import isnan
from typing import Final

import numpy as np

from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import Phase, RequestView
from scheduler_adapters.workload.requests import Floats, Ints

TBT_BUCKETS_S: Final = (
    0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip
DEFAULT_TBT_S: Final = 0.1
"""TBT target of requests without one: PASCAL's reading speed."""
MAX_CLASSES: Final = 50
"""Largest number of classes; further ones count as `OTHER_CLASS`."""
OTHER_CLASS: Final = "other"
PHASES: Final = (Phase.REASONING, Phase.ANSWERING)
_EDGES: Final = np.array(TBT_BUCKETS_S)
_NUM_BINS: Final = len(TBT_BUCKETS_S) + 1
_EMPTY: Final = {
    **dict.fromkeys(("arrival_s", "queueing_s", "first_s", "last_s"), np.nan),
    **dict.fromkeys(("thought_s", "first_shown_s"), np.nan),
    **dict.fromkeys(("num_tokens", "num_answering", "sum_shown_s"), 0.0),
    "tbt_s": DEFAULT_TBT_S,
    "shown_s": -np.inf,
    "thinking": False,
    "class_number": 0,
}
"""Columns, and their values for a request without tokens."""


class TokenClock(EngineObserver):
    """Measures the tokens of started requests.

    If it `thinks`, tokens are reasoning tokens up to the reported end of thinking.
    """

    def __init__(self, thinks: bool = False) -> None:
        self._thinks = thinks
        self._slots: dict[str, int] = {}
        self._queued_s: dict[str, float] = {}
        """Times of requests that have not started."""
        self._emitted_ids: list[str] = []
        self._emitted_counts: list[int] = []
        self._thought_ids: list[str] = []
        self._finished: list[RequestView] = []
        """These four hold the events of the current step."""
        self._free: list[int] = []
        self._newest_ids: list[str] | None = None
        """Requests of `_newest_slots`; None once slots have changed."""
        self._newest_slots = np.empty(0, np.int64)
        self._table = np.empty(0, [(name, type(value)) for name, value in _EMPTY.items()])
        self.classes: list[str] = []
        """User classes by first occurrence: the first index of the two sums below."""
        self.tbt_counts = np.zeros((0, len(PHASES), _NUM_BINS), np.int64)
        """Gaps by class, phase and bucket; the last bucket has no upper edge."""
        self.tbt_sums_s = np.zeros((0, len(PHASES)))
        self.latencies: list[tuple[str, str, float]] = []
        """(metric, class, value) since the list was last read: first answers, finished requests."""

    def __len__(self) -> int:
        return len(self._slots)

    def queued(self, request: RequestView, now_s: float) -> None:
        self._queued_s[request.request_id] = now_s

    def admitted(self, request: RequestView, now_s: float) -> None:
        if request.request_id in self._slots:
            return
        self._newest_ids = None
        if not self._free:
            self._grow()
        slot = self._slots[request.request_id] = self._free.pop()
        row = _EMPTY | {
            "arrival_s": request.arrival_s,
            "queueing_s": now_s - self._queued_s.pop(request.request_id, now_s),
            "tbt_s": DEFAULT_TBT_S if request.tbt_s is None else request.tbt_s,
            "thinking": self._thinks,
            "class_number": self._class_number(request.user_class),
        }
        self._table[slot] = tuple(row.values())

    def emitted(self, request: RequestView, num_tokens: int, now_s: float) -> None:
        self._emitted_ids.append(request.request_id)
        self._emitted_counts.append(num_tokens)

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        if request.request_id in self._emitted_ids:
            self._thought_ids.append(request.request_id)
        elif (slot := self._slots.get(request.request_id)) is not None:
            self._table["thinking"][slot] = False

    def finished(self, request: RequestView, now_s: float) -> None:
        self._finished.append(request)

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        self._queued_s.pop(request.request_id, None)
        if (slot := self._slots.pop(request.request_id, None)) is not None:
            self._free.append(slot)
            self._newest_ids = None

    def stepped(self, now_s: float) -> None:
        """Count the step: gaps by the phase before it, ends of thinking, finished requests."""
        slots = self._slots_of(self._emitted_ids)
        counts = np.array(self._emitted_counts, np.float64)
        slots, counts = slots[slots >= 0], counts[slots >= 0]
        self._count_gaps(slots, counts, now_s)
        answers = ~self._table["thinking"][slots]
        self._answer(slots[answers], counts[answers], now_s)
        for request_id in self._thought_ids:
            if (slot := self._slots.get(request_id)) is not None and self._table["thinking"][slot]:
                self._table["thinking"][slot] = False
                self._table["thought_s"][slot] = now_s
        for request in self._finished:
            self._serve(request)
            self.withdrawn(request, now_s)
        for events in (self._emitted_ids, self._emitted_counts, self._thought_ids, self._finished):
            events.clear()

    def phase(self, request_id: str) -> Phase:
        """Return PREFILL up to the first token, then REASONING or ANSWERING."""
        slot = self._slots.get(request_id)
        if slot is None or np.isnan(self._table["last_s"][slot]):
            return Phase.PREFILL
        return Phase.REASONING if self._table["thinking"][slot] else Phase.ANSWERING

    def pacers(self, now_s: float) -> tuple[int, int, int]:
        """Return the number of pacers with tokens, of empty pacers, and of all held tokens."""
        slots = np.fromiter(self._slots.values(), np.int64, len(self._slots))
        slots = slots[self._table["num_answering"][slots] > 0]
        tbt_s, shown_s = self._table["tbt_s"][slots], self._table["shown_s"][slots]
        num_empty = int((now_s >= shown_s + tbt_s).sum())
        held = np.ceil(np.maximum(0.0, shown_s - now_s) / tbt_s)
        return len(slots) - num_empty, num_empty, int(held.sum())

    def num_answers_below(self, num_tokens: int) -> int:
        """Return the number of answering requests with fewer than `num_tokens` answering tokens."""
        slots = np.fromiter(self._slots.values(), np.int64, len(self._slots))
        answers = ~self._table["thinking"][slots] & (self._table["num_tokens"][slots] > 0)
        return int((answers & (self._table["num_answering"][slots] < num_tokens)).sum())

    def user_class(self, request_id: str) -> str:
        """Return the class in which the request is counted; "" before its first step."""
        slot = self._slots.get(request_id)
        return "" if slot is None else self._class_name(slot)

    def _serve(self, request: RequestView) -> None:
        slot = self._slots.get(request.request_id)
        if slot is None or not self._table["num_tokens"][slot]:
            return
        row, name = self._table[slot], self._class_name(slot)
        values = {
            "queueing_seconds": row["queueing_s"],
            "ttft_seconds": row["first_s"] - row["arrival_s"],
            "e2e_seconds": row["last_s"] - row["arrival_s"],
            "preemptions": request.preemptions,
        }
        if (num_gaps := row["num_tokens"] - 1) > 0:
            values["tpot_seconds"] = (row["last_s"] - row["first_s"]) / num_gaps
        if count := row["num_answering"]:
            total_s = count * (row["shown_s"] + row["tbt_s"])
            expected_s = count * row["first_shown_s"] + row["tbt_s"] * count * (count - 1) / 2
            values["qoe"] = (total_s - row["sum_shown_s"]) / (total_s - expected_s)
        self.latencies += [(metric, name, float(value)) for metric, value in values.items()]

    def _count_gaps(self, slots: Ints, counts: Floats, now_s: float) -> None:
        last_s = self._table["last_s"]
        gaps_s = now_s - last_s[slots]
        last_s[slots] = now_s
        self._table["num_tokens"][slots] += counts
        known = ~np.isnan(gaps_s)
        self._table["first_s"][slots[~known]] = now_s
        slots, gaps_s = slots[known], gaps_s[known]
        rows = self._table["class_number"][slots] * len(PHASES) + ~self._table["thinking"][slots]
        bins = rows * _NUM_BINS + np.searchsorted(_EDGES, gaps_s)
        shape = self.tbt_counts.shape
        self.tbt_counts += np.bincount(bins, minlength=self.tbt_counts.size).reshape(shape)
        sums_s = np.bincount(rows, gaps_s, self.tbt_sums_s.size)
        self.tbt_sums_s += sums_s.reshape(self.tbt_sums_s.shape)

    def _slots_of(self, request_ids: Sequence[str]) -> Ints:
        # Most steps serve the requests of the previous step, in its order.
        if request_ids != self._newest_ids:
            slots = [self._slots.get(request_id, -1) for request_id in request_ids]
            self._newest_slots = np.array(slots, np.int64)
            self._newest_ids = list(request_ids)
        return self._newest_slots

    def _answer(self, slots: Ints, counts: Floats, now_s: float) -> None:
        table = self._table
        tbt_s = table["tbt_s"][slots]
        # The reader takes the tokens of one step in turn.
        first_s = np.maximum(now_s, table["shown_s"][slots] + tbt_s)
        table["shown_s"][slots] = first_s + (counts - 1) * tbt_s
        table["sum_shown_s"][slots] += counts * (first_s + (counts - 1) / 2 * tbt_s)
        for slot in slots[table["num_answering"][slots] == 0].tolist():
            table["first_shown_s"][slot] = now_s
            name, thought_s = self._class_name(slot), float(table["thought_s"][slot])
            first_s = now_s - float(table["arrival_s"][slot])
            self.latencies.append(("first_answer_seconds", name, first_s))
            if not isnan(thought_s):
                self.latencies.append(("ttfat_seconds", name, now_s - thought_s))
        table["num_answering"][slots] += counts

    def _class_name(self, slot: int) -> str:
        return self.classes[int(self._table["class_number"][slot])]

    def _class_number(self, user_class: str) -> int:
        if user_class not in self.classes:
            if len(self.classes) >= MAX_CLASSES and user_class != OTHER_CLASS:
                return self._class_number(OTHER_CLASS)
            self.classes.append(user_class)
            self.tbt_counts = np.pad(self.tbt_counts, ((0, 1), (0, 0), (0, 0)))
            self.tbt_sums_s = np.pad(self.tbt_sums_s, ((0, 1), (0, 0)))
        return self.classes.index(user_class)

    def _grow(self) -> None:
        old = len(self._table)
        more = max(64, old)
        self._table = np.append(self._table, np.empty(more, self._table.dtype))
        self._free.extend(range(old + more - 1, old - 1, -1))
