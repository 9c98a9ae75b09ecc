"""A timeline as a trace for chrome://tracing or ui.perfetto.dev: one line per request."""

import json
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from lengthwise.tables.files import write_whole
from scheduler_adapters.timeline.timeline import Timeline

_MICROSECONDS = 1e6


def write_chrome_trace(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write the phases of each finished request; instances are processes, requests are threads."""
    events = [event for row in range(len(timeline.requests)) for event in _phases(timeline, row)]
    trace = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    write_whole(Path(path), lambda part: part.write_text(trace))


def _phases(timeline: Timeline, row: int) -> list[dict[str, Any]]:
    requests = timeline.requests
    phases = {
        "queueing": requests.arrival_s,
        "prefill": timeline.scheduled_s,
        "reasoning": timeline.first_token_s,
        "answering": timeline.first_answer_s,
    }
    instants_s = [column[row] for column in (*phases.values(), timeline.finished_s)]
    return [
        {
            "name": phase,
            "ph": "X",
            "ts": start_s * _MICROSECONDS,
            "dur": (end_s - start_s) * _MICROSECONDS,
            "pid": int(timeline.instance[row]),
            "tid": row,
            "args": {"request": str(requests.request_id[row])},
        }
        for phase, (start_s, end_s) in zip(phases, pairwise(instants_s), strict=True)
        if end_s > start_s  # false where either never happened
    ]
