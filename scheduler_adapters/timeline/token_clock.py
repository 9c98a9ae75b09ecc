"""What the users of a live engine see: gaps between tokens, first answering tokens, QoE, pacers.

A reader takes one answering token per `tbt_s`. Tokens that come sooner wait in the request's
*pacer*; when it is empty, the reader waits. QoE compares with a reader who never did: with tokens
shown at u_j, expected at x_j = u_1 + (j - 1) tbt_s, and the end H = u_K + tbt_s,

    QoE = sum(H - u_j) / sum(H - x_j), in (0, 1].

All residents of a step are booked at once, by arrays, since this runs in the engine's loop.

Source: Andes' QoE as PASCAL restricts it to answering tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler_adapters.views import Phase, RequestView

TBT_BUCKETS_S: Final = (
    0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip
DEFAULT_TBT_S: Final = 0.1
"""Of requests without a target: PASCAL's reading speed."""
MAX_CLASSES: Final = 50
"""Clients may name any class; those beyond so many are counted together, as `OTHER_CLASS`."""
OTHER_CLASS: Final = "other"
PHASES: Final = (Phase.REASONING, Phase.ANSWERING)
_EDGES: Final = np.array(TBT_BUCKETS_S)
_NUM_BINS: Final = len(TBT_BUCKETS_S) + 1
_FIELDS: Final = {
    "arrival_s": np.nan,
    "tbt_s": DEFAULT_TBT_S,
    "last_s": np.nan,
    "first_shown_s": np.nan,
    "shown_s": -np.inf,
    "sum_shown_s": 0.0,
    "num_answering": 0.0,
}
"""Column -> value of a request without tokens."""


class TokenClock:
    """Follows the tokens of the requests that have started.

    Args:
        think_end: token ids that end thinking; empty: every token is an answering one.
    """

    def __init__(self, think_end: Sequence[int] = ()) -> None:
        self._think_end = tuple(think_end)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._newest_ids: list[str] | None = None
        """Whom the slots below belong to; None once one of them may be another's."""
        self._newest_slots = np.empty(0, np.int64)
        self._table = {name: np.empty(0) for name in _FIELDS}
        self._thinking = np.empty(0, np.bool_)
        self._class_of = np.empty(0, np.int64)
        self._matched: dict[str, int] = {}
        """Of those whose newest tokens begin an end marker: how many tokens of it."""
        self.classes: list[str] = []
        """User classes in the order they were met: the first index of the two sums below."""
        self.tbt_counts = np.zeros((0, len(PHASES), _NUM_BINS), np.int64)
        """Gaps by class, phase and bucket; the last bucket has no upper edge."""
        self.tbt_sums_s = np.zeros((0, len(PHASES)))
        self.first_answers: list[tuple[str, float]] = []
        """(class, first answering token - arrival) since these were last taken."""
        self.finished_qoe: list[tuple[str, float]] = []
        """(class, QoE) of requests finished since these were last taken."""

    def __len__(self) -> int:
        return len(self._slots)

    def admitted(self, view: RequestView) -> None:
        """A request takes part in its first step; one that is here already is ignored."""
        if view.request_id in self._slots:
            return
        self._newest_ids = None
        if not self._free:
            self._grow()
        slot = self._slots[view.request_id] = self._free.pop()
        for name, value in _FIELDS.items():
            self._table[name][slot] = value
        self._table["arrival_s"][slot] = view.arrival_s
        if view.tbt_s is not None:
            self._table["tbt_s"][slot] = view.tbt_s
        self._thinking[slot] = bool(self._think_end)
        self._class_of[slot] = self._class_number(view.user_class)

    def step_ended(
        self, now_s: float, request_ids: Sequence[str], new_tokens: Sequence[Sequence[int]]
    ) -> None:
        """A step gave these requests one or more tokens each; unknown ones are ignored."""
        slots = self._slots_of(request_ids)
        counts = np.array([len(tokens) for tokens in new_tokens], np.float64)
        slots, counts = slots[slots >= 0], counts[slots >= 0]
        self._count_gaps(slots, now_s)
        answers = ~self._thinking[slots]
        self._answer(slots[answers], counts[answers], now_s)
        if self._think_end:
            self._follow_thinking(request_ids, new_tokens)

    def finished(self, request_id: str) -> None:
        """A request has all its tokens; one that is not here is ignored."""
        slot = self._slots.get(request_id)
        if slot is not None and self._table["num_answering"][slot]:
            self.finished_qoe.append((self._class_name(slot), self._qoe(slot)))
        self.forget([request_id])

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop requests that were aborted; those that are not here are ignored."""
        for request_id in request_ids:
            slot = self._slots.pop(request_id, None)
            self._matched.pop(request_id, None)
            if slot is not None:
                self._free.append(slot)
                self._newest_ids = None

    def phase(self, request_id: str) -> Phase:
        """PREFILL until the first token, then REASONING or ANSWERING."""
        slot = self._slots.get(request_id)
        if slot is None or np.isnan(self._table["last_s"][slot]):
            return Phase.PREFILL
        return Phase.REASONING if self._thinking[slot] else Phase.ANSWERING

    def pacers(self, now_s: float) -> tuple[int, int, int]:
        """Answering requests whose pacer holds tokens, those whose pacer is empty, and all tokens
        that the pacers hold."""
        slots = np.fromiter(self._slots.values(), np.int64, len(self._slots))
        slots = slots[self._table["num_answering"][slots] > 0]
        tbt_s, shown_s = self._table["tbt_s"][slots], self._table["shown_s"][slots]
        num_empty = int((now_s >= shown_s + tbt_s).sum())
        held = np.ceil(np.maximum(0.0, shown_s - now_s) / tbt_s)
        return len(slots) - num_empty, num_empty, int(held.sum())

    def user_class(self, request_id: str) -> str:
        """The class that the request is counted to; "" before its first step."""
        slot = self._slots.get(request_id)
        return "" if slot is None else self._class_name(slot)

    def _count_gaps(self, slots: NDArray[np.int64], now_s: float) -> None:
        last_s = self._table["last_s"]
        gaps_s = now_s - last_s[slots]
        last_s[slots] = now_s
        known = ~np.isnan(gaps_s)
        slots, gaps_s = slots[known], gaps_s[known]
        rows = self._class_of[slots] * len(PHASES) + ~self._thinking[slots]
        bins = rows * _NUM_BINS + np.searchsorted(_EDGES, gaps_s)
        shape = self.tbt_counts.shape
        self.tbt_counts += np.bincount(bins, minlength=self.tbt_counts.size).reshape(shape)
        sums_s = np.bincount(rows, gaps_s, self.tbt_sums_s.size)
        self.tbt_sums_s += sums_s.reshape(self.tbt_sums_s.shape)

    def _slots_of(self, request_ids: Sequence[str]) -> NDArray[np.int64]:
        """Steps mostly serve those whom the step before served, in the same order."""
        if request_ids != self._newest_ids:
            slots = [self._slots.get(request_id, -1) for request_id in request_ids]
            self._newest_slots = np.array(slots, np.int64)
            self._newest_ids = list(request_ids)
        return self._newest_slots

    def _answer(self, slots: NDArray[np.int64], counts: NDArray[np.float64], now_s: float) -> None:
        table = self._table
        tbt_s = table["tbt_s"][slots]
        # Tokens of one step go out one after the other from the first one's time on.
        first_s = np.maximum(now_s, table["shown_s"][slots] + tbt_s)
        table["shown_s"][slots] = first_s + (counts - 1) * tbt_s
        table["sum_shown_s"][slots] += counts * (first_s + (counts - 1) / 2 * tbt_s)
        for slot in slots[table["num_answering"][slots] == 0].tolist():
            table["first_shown_s"][slot] = now_s
            self.first_answers.append(
                (self._class_name(slot), now_s - float(table["arrival_s"][slot]))
            )
        table["num_answering"][slots] += counts

    def _follow_thinking(
        self, request_ids: Sequence[str], new_tokens: Sequence[Sequence[int]]
    ) -> None:
        first, matched = self._think_end[0], self._matched
        for request_id, tokens in zip(request_ids, new_tokens, strict=True):
            if first in tokens or request_id in matched:
                self._match(request_id, tokens)

    def _match(self, request_id: str, tokens: Sequence[int]) -> None:
        """Look for the end marker, which may be cut by the end of a step."""
        slot, end = self._slots.get(request_id), self._think_end
        if slot is None or not self._thinking[slot]:
            return
        matched = self._matched.pop(request_id, 0)
        for token in tokens:
            matched = matched + 1 if token == end[matched] else int(token == end[0])
            if matched == len(end):
                self._thinking[slot] = False
                return
        if matched:
            self._matched[request_id] = matched

    def _qoe(self, slot: int) -> float:
        tbt_s, first_s, last_s, sum_s, count = (
            float(self._table[name][slot])
            for name in ("tbt_s", "first_shown_s", "shown_s", "sum_shown_s", "num_answering")
        )
        end_s = last_s + tbt_s
        expected_s = count * first_s + tbt_s * count * (count - 1) / 2
        return (count * end_s - sum_s) / (count * end_s - expected_s)

    def _class_name(self, slot: int) -> str:
        return self.classes[int(self._class_of[slot])]

    def _class_number(self, user_class: str) -> int:
        if user_class not in self.classes:
            if len(self.classes) >= MAX_CLASSES and user_class != OTHER_CLASS:
                return self._class_number(OTHER_CLASS)
            self.classes.append(user_class)
            self.tbt_counts = np.pad(self.tbt_counts, ((0, 1), (0, 0), (0, 0)))
            self.tbt_sums_s = np.pad(self.tbt_sums_s, ((0, 1), (0, 0)))
        return self.classes.index(user_class)

    def _grow(self) -> None:
        old = len(self._thinking)
        more = max(64, old)
        self._table = {name: np.append(a, np.empty(more)) for name, a in self._table.items()}
        self._thinking = np.append(self._thinking, np.empty(more, np.bool_))
        self._class_of = np.append(self._class_of, np.empty(more, np.int64))
        self._free.extend(range(old + more - 1, old - 1, -1))
