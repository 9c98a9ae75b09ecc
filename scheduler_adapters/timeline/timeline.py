"""The times of each request: one record for all engines, simulated or real.

Token times are *runs* over *ticks*. A tick is an instant at which an engine emitted tokens: the end
of a step. A run is a first and a last tick; a request emitted one token at each tick between them.
Requests that decode in the same steps share their ticks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import DataError, raised_as
from lengthwise.tables.files import write_whole
from lengthwise.tables.reading import read_table
from scheduler_adapters.workload.requests import COLUMNS, Floats, Ints, Requests, make_requests


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Timeline:
    """The times of N requests, in the order of `requests`: seconds, NaN for missing events."""

    requests: Requests
    scheduled_s: Floats
    """Start of the first step with the request."""
    first_token_s: Floats
    first_answer_s: Floats
    """First token after the end of thinking; the first token without reasoning."""
    answer_scheduled_s: Floats
    """Start of the step of this token, for requests that reason; NaN if unknown."""
    finished_s: Floats
    preemptions: Ints
    rejected: NDArray[np.bool_]
    """Rejected at arrival: the request alone needs more KV blocks than the instance has."""
    instance: Ints
    """Last instance of the request."""
    migrations: Ints
    """Moves of the request between instances."""
    tick_s: Floats
    """Shape (K,): times of emitted tokens, ascending within an instance."""
    runs: Ints
    """Shape (R, 3): row of the request, first and last tick of a run of tokens; sorted."""

    def take(self, rows: NDArray[Any]) -> Timeline:
        """Return the part of the timeline at `rows` (a mask over the requests)."""
        new_row = np.cumsum(rows) - 1
        runs = self.runs[rows[self.runs[:, 0]]]
        return Timeline(
            requests=self.requests.take(rows),
            tick_s=self.tick_s,
            runs=np.column_stack([new_row[runs[:, 0]], runs[:, 1:]]),
            **{name: getattr(self, name)[rows] for name in _PER_REQUEST},
        )

    def token_s(self, row: int) -> Floats:
        """Return the times of the output tokens of the request at `row`."""
        first, last = np.searchsorted(self.runs[:, 0], [row, row + 1])
        pieces = [self.tick_s[start : stop + 1] for _, start, stop in self.runs[first:last]]
        return np.concatenate([*pieces, np.empty(0)])

    def ttft_s(self) -> Floats:
        """Return first token - arrival of each request (N,); NaN without tokens."""
        return self.first_token_s - self.requests.arrival_s

    def e2e_s(self) -> Floats:
        """Return last token - arrival of each request (N,); NaN if unfinished."""
        return self.finished_s - self.requests.arrival_s

    def reasoned_s(self) -> Floats:
        """Return the time of the last reasoning token of each request (N,); NaN without one."""
        return nth_token_s(self.requests.reasoning_tokens - 1, self.runs, self.tick_s)


def nth_token_s(number: Ints, runs: Ints, tick_s: Floats) -> Floats:
    """Return the time of token `number` (N,) of each request, from 0 on; NaN if not emitted."""
    return at_ticks(tick_s, nth_token_tick(number, runs))


def at_ticks(values: Floats, ticks: Ints) -> Floats:
    """Return the values (K,) at these ticks (N,); NaN for tick -1."""
    return np.append(values, np.nan)[ticks]


def nth_token_tick(number: Ints, runs: Ints) -> Ints:
    """Return the tick of token `number` (N,) of each request; -1 if not emitted."""
    tokens = runs[:, 2] - runs[:, 1] + 1
    before = tokens_before(runs)
    wanted = number[runs[:, 0]]
    holds = (before <= wanted) & (wanted < before + tokens)
    tick = np.full(len(number), -1)
    tick[runs[holds, 0]] = runs[holds, 1] + wanted[holds] - before[holds]
    return tick


def tokens_before(runs: Ints) -> Ints:
    """Return the tokens (R,) of the same request before each run."""
    tokens = runs[:, 2] - runs[:, 1] + 1
    total_before = np.cumsum(tokens) - tokens
    first_of_row: NDArray[np.int64] = np.searchsorted(runs[:, 0], runs[:, 0])
    return np.asarray(total_before - total_before[first_of_row])


def join_timelines(
    requests: Requests,
    parts: Sequence[Timeline],
    rows: Sequence[NDArray[Any]],
    *,
    last: NDArray[Any] | None = None,
) -> Timeline:
    """Return one timeline of several instances: `parts[i]` holds the requests at `rows[i]`.

    A request in several parts has the tokens of all. Its other fields are those at place `last`
    (N,) in the concatenated `rows`.
    """
    if last is None:
        last = np.argsort(np.concatenate(rows))
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])[last] for name in _PER_REQUEST
    }
    columns["instance"] = np.repeat(np.arange(len(parts)), [len(row) for row in rows])[last]
    offsets = np.cumsum([0, *(len(part.tick_s) for part in parts)])
    shifted = [
        np.column_stack([row[part.runs[:, 0]], part.runs[:, 1:] + offset])
        for part, row, offset in zip(parts, rows, offsets, strict=False)
    ]
    runs = np.concatenate(shifted)
    tick_s = np.concatenate([part.tick_s for part in parts])
    return Timeline(
        requests=requests,
        tick_s=tick_s,
        runs=runs[np.lexsort((runs[:, 1], tick_s[runs[:, 1]], runs[:, 0]))],
        **columns,
    )


_PER_REQUEST = tuple(
    field.name for field in fields(Timeline) if field.name not in ("requests", "tick_s", "runs")
)


def timeline_from_token_times(
    requests: Requests, token_s: Sequence[ArrayLike], **columns: Any
) -> Timeline:
    """Return the timeline from the token times of each request.

    `columns` are fields of the timeline, (N,) or one value for all: `scheduled_s`,
    `answer_scheduled_s`, `preemptions`, `rejected`, `instance`, `migrations`.
    """
    times = [np.asarray(times_s, dtype=np.float64) for times_s in token_s]
    emitted = np.array([len(row) for row in times])
    stops = np.cumsum(emitted)
    rows = np.flatnonzero(emitted)
    ticks = np.concatenate([*times, np.empty(0)])
    runs = np.column_stack([rows, (stops - emitted)[rows], stops[rows] - 1]).astype(np.int64)
    filled = {
        name: np.full(len(requests), value, type(_WITHOUT_EVENTS[name]))
        for name, value in (_WITHOUT_EVENTS | columns).items()
    }
    return Timeline(
        requests=requests,
        first_token_s=nth_token_s(np.zeros(len(requests), np.int64), runs, ticks),
        first_answer_s=nth_token_s(requests.reasoning_tokens, runs, ticks),
        finished_s=nth_token_s(requests.output_tokens - 1, runs, ticks),
        tick_s=ticks,
        runs=runs,
        **filled,
    )


_WITHOUT_EVENTS: dict[str, float] = {
    **{"scheduled_s": np.nan, "answer_scheduled_s": np.nan, "preemptions": 0},
    **{"rejected": False, "instance": 0, "migrations": 0},
}
"""Fields of a timeline that token times do not give, and their values without events."""


def write_timeline(
    timeline: Timeline, path: str | PathLike[str], *, token_times: bool = True
) -> None:
    """Write one row per request as .parquet or .jsonl, with all token times if `token_times`.

    Raises DataError: another suffix, or the path cannot be written; no part of the file remains.
    """
    path, requests = Path(path), timeline.requests
    columns = {name: getattr(requests, name) for name in COLUMNS if requests.gives(name)}
    columns |= {name: getattr(timeline, name) for name in _PER_REQUEST}
    if token_times:
        columns["token_s"] = [timeline.token_s(row) for row in range(len(requests))]
    table = pd.DataFrame(columns)
    writers: dict[str, Callable[[Path], object]] = {
        ".parquet": lambda part: table.to_parquet(part, index=False),
        ".jsonl": lambda part: part.write_text("".join(map(_json_line, table.to_dict("records")))),
    }
    if path.suffix not in writers:
        raise DataError("has no known format; use .parquet or .jsonl", path=path)
    write_whole(path, writers[path.suffix])


def _json_line(row: Mapping[Any, Any]) -> str:
    clean = {
        name: value.tolist() if isinstance(value, np.ndarray) else None if value != value else value
        for name, value in row.items()
    }
    return json.dumps(clean) + "\n"


def read_timeline(path: str | PathLike[str]) -> Timeline:
    """Read a file of `write_timeline` with token times. Raises DataError without a column."""
    path = Path(path)
    table = read_table(path, _WRITTEN)
    if "token_s" not in table:
        raise DataError("no column 'token_s'; write it with token times", path=path)
    # Engines write requests as they finish; `make_requests` would sort these columns alone.
    table = table.sort_values("arrival_s", kind="stable")
    ours, events = (
        {name: table[name].to_numpy() for name in names if name in table}
        for names in (COLUMNS, _WITHOUT_EVENTS)
    )
    requests = make_requests(path=path, **ours)
    with raised_as(DataError, "cannot be read: {}", TypeError, ValueError, path=path):
        return timeline_from_token_times(requests, table["token_s"].to_list(), **events)


_WRITTEN = (
    *(name for name, column in COLUMNS.items() if not column.is_rare),
    *("scheduled_s", "preemptions", "rejected", "instance"),
)
"""Columns that `read_timeline` needs; other times follow from those of the tokens."""
