"""Requests that moved between instances: a record of each move, and one timeline of all parts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler_adapters.timeline.timeline import (
    Timeline,
    join_timelines,
    nth_token_s,
    timeline_from_token_times,
)
from scheduler_adapters.workload.requests import Ints, Requests


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One move of a request between two instances."""

    request_id: str
    source: int
    destination: int
    start_s: float
    end_s: float
    kv_blocks: int
    downtime_s: float
    """Seconds from `start_s` to `end_s` in which the request could not run."""
    stages: int = 1
    """Copies of its KV, the last of them without decoding; 0: the KV was dropped."""


def join_moved(
    requests: Requests,
    parts: Sequence[Timeline],
    rows: Sequence[Sequence[int]],
    last_at: Ints,
    migrations: Ints,
) -> Timeline:
    """Return one timeline of several instances with migrations between them.

    Args:
        parts: the timeline of each instance.
        rows: the requests in the timeline of each instance; a request has a row for each stay.
        last_at: (N, 2), the last instance of each request, and its row there; -1 without any.
        migrations: (N,), the moves of each request.
    """
    placed = last_at[:, 0] >= 0
    nowhere = np.flatnonzero(~placed)
    all_rows = [*(np.array(own, dtype=np.int64) for own in rows), nowhere]
    nothing = timeline_from_token_times(requests.take(nowhere), [()] * len(nowhere))
    starts = np.cumsum([0, *map(len, rows)])
    last = np.empty(len(requests), dtype=np.int64)
    last[placed] = starts[last_at[placed, 0]] + last_at[placed, 1]
    last[nowhere] = starts[-1] + np.arange(len(nowhere))
    joined = join_timelines(requests, [*parts, nothing], all_rows, last=last)
    stays = np.bincount(np.concatenate(all_rows), minlength=len(requests))
    answer_scheduled_s = np.full(len(requests), np.nan)
    for own, part in zip(all_rows, [*parts, nothing], strict=True):
        np.fmin.at(answer_scheduled_s, own, part.answer_scheduled_s)
    moved_answers_s = nth_token_s(requests.reasoning_tokens, joined.runs, joined.tick_s)
    return replace(
        joined,
        first_answer_s=np.where(stays > 1, moved_answers_s, joined.first_answer_s),
        answer_scheduled_s=answer_scheduled_s,
        instance=np.where(placed, joined.instance, 0),
        migrations=migrations,
    )
