"""Quality of experience (QoE): reading times of an answer, against an answer without late tokens.

A reader takes one answering token per `pace`: the request's TBT target, else 0.1 s. Token j of K
is generated at g_j, read at u_j, and would be read at x_j if no token were late:

    u_1 = g_1, u_j = max(g_j, u_(j-1) + pace), x_j = g_1 + (j - 1) pace, H = u_K + pace
    QoE = sum(H - u_j) / sum(H - x_j), in (0, 1]

Source: Andes' QoE as PASCAL restricts it to answering tokens; the tail of the first answer is that
of PASCAL's evaluation.
"""

# u_j - j pace is the greatest g_i - i pace so far. It changes only at a token that follows a gap
# above `pace`. So a run has one piece, and one more per slow gap in it.

from typing import Any, Final

import numpy as np
import pandas as pd

from scheduler_adapters.timeline.timeline import Timeline, tokens_before
from scheduler_adapters.timeline.token_clock import DEFAULT_TBT_S
from scheduler_adapters.workload.requests import Floats, Ints

LEAST_QOE = 0.95
"""A request below this violates PASCAL's SLO."""
BIN_TOKENS: Final = 256
LEAST_REQUESTS: Final = 5
_PERCENTS: Final = ((10, 100.0), (20, 90.0), (100, 95.0))
"""(number of requests, percentile of a bin with fewer); the 99th for all larger bins."""


def qoe(timeline: Timeline, *, ttfat_target_s: float | None = None) -> Floats:
    """Return the QoE of each request (N,); NaN without an answering token.

    Args:
        ttfat_target_s: latest expected time of the first answering token, in seconds after the
            end of reasoning, or after the arrival without reasoning. None: it is never late.
    """
    requests = timeline.requests
    pace_s = np.where(np.isnan(requests.tbt_s), DEFAULT_TBT_S, requests.tbt_s)
    late_s = np.zeros(len(requests))
    if ttfat_target_s is not None:
        since_s = np.where(requests.reasoning_tokens > 0, timeline.reasoned_s(), requests.arrival_s)
        waited_s = timeline.first_answer_s - since_s
        late_s = np.fmax(0.0, waited_s - ttfat_target_s)
    values = np.full(len(requests), np.nan)
    answers = _answer_runs(timeline)
    for pace in np.unique(pace_s):
        runs = answers[pace_s[answers[:, 0]] == pace]
        if len(runs):
            rows, value = _qoe_at(float(pace), timeline.tick_s, runs, late_s)
            values[rows] = value
    return values


def violation_fraction(values: Floats) -> float:
    """Return the share of QoE values (N,) below `LEAST_QOE`; NaN without values."""
    known = values[~np.isnan(values)]
    return float((known < LEAST_QOE).mean()) if len(known) else np.nan


def _answer_runs(timeline: Timeline) -> Ints:
    """Return the runs of answering tokens (R, 4): row, first and last tick, number of the first."""
    row, first, last = timeline.runs.T
    answered = tokens_before(timeline.runs) - timeline.requests.reasoning_tokens[row]
    runs = np.column_stack([row, first - np.minimum(answered, 0), last, np.maximum(answered, 0)])
    return runs[runs[:, 1] <= runs[:, 2]]


def _qoe_at(pace_s: float, tick_s: Floats, runs: Ints, late_s: Floats) -> tuple[Ints, Floats]:
    """Return the rows with answers, and their QoE at one pace."""
    row, first, count, number = _pieces(pace_s, tick_s, runs)
    rows, at, of = np.unique(row, return_index=True, return_inverse=True)
    # u_j - x_j of each piece; 0 for the first token.
    behind_s = tick_s[first] - tick_s[first[at]][of] - number * pace_s
    lag_s = pd.Series(behind_s).groupby(of).cummax().to_numpy()
    total = np.bincount(of, count)
    end_s = total * pace_s + lag_s[np.append(at[1:], len(of)) - 1]
    ideal = total * end_s - pace_s * total * (total - 1) / 2
    return rows, (ideal - np.bincount(of, count * lag_s)) / (ideal + total * late_s[rows])


def _pieces(pace_s: float, tick_s: Floats, runs: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return row, first tick, tokens and number of the first token of each piece of the runs.

    Inside a piece, the gaps between tokens are at most the pace.
    """
    row, first, last, number = runs.T
    slow = np.flatnonzero(np.diff(tick_s) > pace_s) + 1
    begin = np.searchsorted(slow, first, "right")
    num_pieces = np.searchsorted(slow, last, "right") - begin + 1
    of = np.repeat(np.arange(len(runs)), num_pieces)
    nth = np.arange(len(of)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    start = first[of]
    start[nth > 0] = slow[(begin[of] + nth - 1)[nth > 0]]
    next_start = np.append(start[1:], 0)
    next_start[np.cumsum(num_pieces) - 1] = last + 1
    return row[of], start, next_start - start, number[of] + start - first[of]


def first_answer_tail(timeline: Timeline) -> list[dict[str, Any]]:
    """Return the tail of the time to the first answering token, by bin of reasoning tokens.

    Requests with long reasoning answer late under every policy, so each bin with at least
    `LEAST_REQUESTS` has a percentile of its own, lower the fewer requests it has.
    """
    first_s = timeline.first_answer_s - timeline.requests.arrival_s
    answers = ~np.isnan(first_s)
    bins = timeline.requests.reasoning_tokens[answers] // BIN_TOKENS
    numbers, counts = np.unique(bins, return_counts=True)
    return [
        {
            "reasoning_tokens": number * BIN_TOKENS,
            "count": count,
            "percent": (percent := tail_percent(count)),
            "first_answer_s": float(np.percentile(first_s[answers][bins == number], percent)),
        }
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        if count >= LEAST_REQUESTS
    ]


def tail_percent(count: int) -> float:
    """Return the percentile that represents the tail of `count` values."""
    return next((percent for below, percent in _PERCENTS if count < below), 99.0)


def reading_figures(timeline: Timeline) -> dict[str, Any]:
    """Return the tail and, for several user classes, tail and QoE violations of each class.

    The result is empty without reasoning, and can be written as JSON.
    """
    if not timeline.requests.reasoning_tokens.any():
        return {}
    figures: dict[str, Any] = {"first_answer_tail": first_answer_tail(timeline)}
    user_class = timeline.requests.user_class
    names = np.unique(user_class).tolist()
    if len(names) > 1:
        parts = {name: timeline.take(user_class == name) for name in names}
        figures["by_class"] = {
            name: {
                "qoe_violations": violation_fraction(qoe(part)),
                "first_answer_tail": first_answer_tail(part),
            }
            for name, part in parts.items()
        }
    return figures
