"""Chrome traces: the phases that took time, in microseconds, instance by instance."""

import json

import numpy as np
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.timeline.chrome_trace import write_chrome_trace
from scheduler_adapters.timeline.timeline import timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests

REQUESTS = make_requests(
    prompt_tokens=[4, 4, 4],
    output_tokens=[3, 1, 2],
    reasoning_tokens=[1, 0, 0],
    arrival_s=[0.0, 1.0, 1.5],
    request_id=["thinks", "short", "unserved"],
)
TIMELINE = timeline_from_token_times(
    REQUESTS, [[2.0, 3.0, 5.0], [4.0], []], scheduled_s=[0.5, 1.0, np.nan], instance=[0, 1, 0]
)


def test_each_request_has_the_phases_that_took_time(tmp_path):
    path = tmp_path / "trace.json"
    write_chrome_trace(TIMELINE, path)
    events = json.loads(path.read_text())["traceEvents"]
    told = [(e["args"]["request"], e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events]
    assert told == [
        ("thinks", "queueing", 0.0, 0.5),
        ("thinks", "prefill", 0.5, 1.5),
        ("thinks", "reasoning", 2.0, 1.0),
        ("thinks", "answering", 3.0, 2.0),
        ("short", "prefill", 1.0, 3.0),
    ]
    assert {(e["args"]["request"], e["pid"], e["tid"]) for e in events} == {
        ("thinks", 0, 0),
        ("short", 1, 1),
    }
    assert {e["ph"] for e in events} == {"X"}


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(DataError, match=r"trace\.json: cannot be written"):
        write_chrome_trace(TIMELINE, tmp_path / "absent" / "trace.json")
    assert list(tmp_path.iterdir()) == []
