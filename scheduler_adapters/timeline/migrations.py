"""Requests that moved between instances: a record of each move, and one timeline of all."""

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
    """One request that went from one instance to another."""

    request_id: str
    source: int
    destination: int
    start_s: float
    end_s: float
    kv_blocks: int
    downtime_s: float
    """Of these seconds, those in which the request could not run."""
    stages: int = 1
    """In which its KV was copied; 0: it was left behind. During all but the last of several it
    decoded."""


def join_moved(
    requests: Requests,
    parts: Sequence[Timeline],
    rows: Sequence[Sequence[int]],
    last_at: Ints,
    migrations: Ints,
) -> Timeline:
    """Return one timeline of several instances, between which requests may have moved.

    Args:
        parts: the timeline of each instance.
        rows: of each instance, the requests that its timeline holds, one by one; a request is there
            once for every time that it came.
        last_at: where each request was last, (N, 2): instance, and its row there; -1 for requests
            that came to none.
        migrations: how often each has moved, (N,).
    """
    came = last_at[:, 0] >= 0
    nowhere = np.flatnonzero(~came)
    all_rows = [*(np.array(own, dtype=np.int64) for own in rows), nowhere]
    nothing = timeline_from_token_times(requests.take(nowhere), [()] * len(nowhere))
    starts = np.cumsum([0, *map(len, rows)])
    last = np.empty(len(requests), dtype=np.int64)
    last[came] = starts[last_at[came, 0]] + last_at[came, 1]
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
        instance=np.where(came, joined.instance, 0),
        migrations=migrations,
    )
