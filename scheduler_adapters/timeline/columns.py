"""The columns of a timeline, while an engine fills them."""

from __future__ import annotations

from array import array
from math import nan

import numpy as np
from numpy.typing import NDArray

from scheduler_adapters.timeline.timeline import Timeline, nth_token_s
from scheduler_adapters.workload.requests import Floats, Ints, Requests


class TimelineRecord:
    """The events of one engine, row by row; `timeline` returns them as a `Timeline`."""

    def __init__(self) -> None:
        self.scheduled_s: list[float] = []
        self.first_token_s: list[float] = []
        self.finished_s: list[float] = []
        self.preemptions: list[int] = []
        self.tick_s = array("d")
        self._run_rows, self._run_counts, self._run_ticks = array("q"), array("q"), array("q")
        self._pieces_of: dict[int, list[int]] = {}
        """By row where its runs begin in the columns of ticks; brought up to date when asked."""
        self._num_indexed = self._ticks_indexed = 0

    def add_rows(self, count: int) -> None:
        """Make room for further requests."""
        self.scheduled_s += [nan] * count
        self.first_token_s += [nan] * count
        self.finished_s += [nan] * count
        self.preemptions += [0] * count

    def run(self, row: int, first_tick: int, last_tick: int) -> None:
        """Record that the request emitted one token at each of these ticks."""
        self.add_runs(row, (first_tick, last_tick))

    def add_runs(self, row: int, ticks: array[int] | tuple[int, int]) -> None:
        """Record several runs of one request: first tick, last tick, first tick, ..."""
        self._run_rows.append(row)
        self._run_counts.append(len(ticks) // 2)
        self._run_ticks.extend(ticks)

    def token_s(self, row: int) -> list[float]:
        """Return when the tokens came out that are recorded of one request."""
        counts, ticks, tick_s = self._run_counts, self._run_ticks, self.tick_s
        for number in range(self._num_indexed, len(counts)):
            end = self._ticks_indexed + 2 * counts[number]
            pieces = self._pieces_of.setdefault(self._run_rows[number], [])
            pieces += range(self._ticks_indexed, end, 2)
            self._ticks_indexed = end
        self._num_indexed = len(counts)
        own = sorted((ticks[at], ticks[at + 1]) for at in self._pieces_of.get(row, ()))
        return [one for first, last in own for one in tick_s[first : last + 1]]

    def timeline(self, requests: Requests, rejected: NDArray[np.bool_]) -> Timeline:
        """Return what happened so far; requests without a row have not been handed over yet."""
        missing = len(requests) - len(self.finished_s)
        return timeline_of_columns(
            requests,
            rejected,
            np.array(self.scheduled_s + [nan] * missing),
            np.array(self.first_token_s + [nan] * missing),
            np.array(self.finished_s + [nan] * missing),
            np.array(self.preemptions + [0] * missing, dtype=np.int64),
            np.array(self.tick_s, dtype=np.float64),
            self._runs(),
        )

    def _runs(self) -> Ints:
        """Return the row of each run, and its first and last tick."""
        rows = np.repeat(np.array(self._run_rows, np.int64), np.array(self._run_counts, np.int64))
        return np.column_stack([rows, np.array(self._run_ticks, np.int64).reshape(-1, 2)])


def timeline_of_columns(
    requests: Requests,
    rejected: NDArray[np.bool_],
    scheduled_s: Floats,
    first_token_s: Floats,
    finished_s: Floats,
    preemptions: Ints,
    tick_s: Floats,
    runs: Ints,
) -> Timeline:
    """Return the timeline of one instance; `runs` (row, first tick, last tick) in any order."""
    runs = _joined(runs.reshape(-1, 3))
    answer_s = first_token_s.copy()
    if requests.reasoning_tokens.any():
        answer_s = nth_token_s(requests.reasoning_tokens, runs, tick_s)
    return Timeline(
        requests=requests,
        scheduled_s=scheduled_s,
        first_token_s=first_token_s,
        first_answer_s=answer_s,
        finished_s=finished_s,
        preemptions=preemptions,
        rejected=rejected,
        instance=np.zeros(len(requests), dtype=np.int64),
        migrations=np.zeros(len(requests), dtype=np.int64),
        tick_s=tick_s,
        runs=runs,
    )


def _joined(runs: Ints) -> Ints:
    """Return the runs in order of (row, tick); those without a gap between them become one."""
    # One sort of one number: a third of the time of np.lexsort, as most runs come in order.
    order = np.argsort((runs[:, 0] << 32) + runs[:, 1], kind="stable")
    row, first, last = (runs[order, column] for column in range(3))
    starts = np.ones(len(runs), dtype=np.bool_)
    starts[1:] = (row[1:] != row[:-1]) | (first[1:] != last[:-1] + 1)
    ends = np.append(starts[1:], True)[: len(runs)]
    return np.column_stack([row[starts], first[starts], last[ends]])


def none_for_nan(column: Floats) -> list[float | None]:
    """Return the values as views have them."""
    return [None if value != value else value for value in column.tolist()]
