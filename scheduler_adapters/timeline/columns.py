"""The columns of a timeline, while an engine fills them."""

from array import array
from collections.abc import Mapping, Sequence
from math import nan
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from scheduler_adapters.timeline.timeline import Timeline, at_ticks, nth_token_tick
from scheduler_adapters.workload.requests import Floats, Ints, Requests


class TimelineRecord:
    """The events of one engine, by row of the request."""

    def __init__(self) -> None:
        self.scheduled_s: list[float] = []
        self.first_token_s: list[float] = []
        self.finished_s: list[float] = []
        self.preemptions: list[int] = []
        self.tick_s = array("d")
        self.start_s: dict[int, float] = {}
        """Start of the step of a tick, if it is not the previous tick."""
        self._run_rows, self._run_counts, self._run_ticks = array("q"), array("q"), array("q")

    def add_rows(self, count: int) -> None:
        self.scheduled_s += [nan] * count
        self.first_token_s += [nan] * count
        self.finished_s += [nan] * count
        self.preemptions += [0] * count

    def add_runs(self, row: int, ticks: Sequence[int]) -> None:
        """Record runs of one request: first and last tick of each in turn."""
        self._run_rows.append(row)
        self._run_counts.append(len(ticks) // 2)
        self._run_ticks.extend(ticks)

    def token_s(self, ticks: Sequence[int]) -> list[float]:
        """Return the times of the tokens in runs: first and last tick of each in turn."""
        runs = zip(ticks[::2], ticks[1::2], strict=True)
        return [one for first, last in runs for one in self.tick_s[first : last + 1]]

    def timeline(
        self, requests: Requests, rejected: NDArray[np.bool_], *, earlier_tokens: Ints | int = 0
    ) -> Timeline:
        """Return the timeline so far; requests without a row have no events.

        `earlier_tokens` (N,) are the tokens that other instances emitted.
        """
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
            start_s=self.start_s,
            earlier_tokens=earlier_tokens,
        )

    def _runs(self) -> Ints:
        rows = np.repeat(np.array(self._run_rows, np.int64), np.array(self._run_counts, np.int64))
        return _joined(np.column_stack([rows, np.array(self._run_ticks, np.int64).reshape(-1, 2)]))


def timeline_of_columns(
    requests: Requests,
    rejected: NDArray[np.bool_],
    scheduled_s: Floats,
    first_token_s: Floats,
    finished_s: Floats,
    preemptions: Ints,
    tick_s: Floats,
    runs: Ints,
    *,
    start_s: Mapping[int, float] = MappingProxyType({}),
    earlier_tokens: Ints | int = 0,
) -> Timeline:
    """Return the timeline of one instance from its columns, as in `Timeline`."""
    answer_s, answer_scheduled_s = first_token_s.copy(), np.full(len(requests), np.nan)
    if requests.reasoning_tokens.any():
        tick = nth_token_tick(requests.reasoning_tokens - earlier_tokens, runs)
        answer_s = at_ticks(tick_s, tick)
        steps_s = np.append(np.nan, tick_s[:-1])
        steps_s[list(start_s)] = list(start_s.values())
        thinks = requests.reasoning_tokens > 0
        answer_scheduled_s[thinks] = at_ticks(steps_s, tick[thinks])
    return Timeline(
        requests=requests,
        scheduled_s=scheduled_s,
        first_token_s=first_token_s,
        first_answer_s=answer_s,
        answer_scheduled_s=answer_scheduled_s,
        finished_s=finished_s,
        preemptions=preemptions,
        rejected=rejected,
        instance=np.zeros(len(requests), dtype=np.int64),
        migrations=np.zeros(len(requests), dtype=np.int64),
        tick_s=tick_s,
        runs=runs,
    )


def _joined(runs: Ints) -> Ints:
    """Return the runs in order of (row, tick); adjacent runs become one."""
    # One number per run: a third of the time of np.lexsort, as most runs are in order.
    order = np.argsort((runs[:, 0] << 32) + runs[:, 1], kind="stable")
    row, first, last = (runs[order, column] for column in range(3))
    starts = np.ones(len(runs), dtype=np.bool_)
    starts[1:] = (row[1:] != row[:-1]) | (first[1:] != last[:-1] + 1)
    ends = np.append(starts[1:], True)[: len(runs)]
    return np.column_stack([row[starts], first[starts], last[ends]])
