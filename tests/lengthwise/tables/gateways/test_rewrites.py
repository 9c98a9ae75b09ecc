"""Streamed answers are one response, however they are kept."""

import json
from typing import Any

import pytest

from lengthwise.tables.gateways.rewrites import merged_stream

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def chunk(finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choices = [{"index": index, "delta": {"content": "a"}, "finish_reason": finish}]
    return {"object": "chat.completion.chunk", "choices": choices, "usage": None} | more


CHUNKS = [chunk(), chunk("stop"), chunk(choices=[], usage=USAGE)]
SSE = "".join(f"data: {json.dumps(each)}\n\n" for each in CHUNKS) + "data: [DONE]\n\n"


@pytest.mark.parametrize("kept", [CHUNKS, json.dumps(CHUNKS), SSE, SSE.split("\n\n")[:-1]])
def test_usage_and_end_are_those_of_the_stream(kept):
    found = merged_stream({"response": kept, "timestamp": 1})
    assert found["response"]["usage"] == USAGE
    assert found["response"]["choices"] == [{"index": 0, "finish_reason": "stop"}]
    assert (found["response"]["broken"], found["timestamp"]) == (None, 1)
    inner = merged_stream({"response": json.dumps({"status": 200, "body": kept})})["response"]
    assert inner == {"status": 200, "body": found["response"]}


def test_typed_events_of_other_interfaces_are_merged():
    events = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens"},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ]
    found = merged_stream({"response": {"body": events}})["response"]["body"]
    assert found["usage"] == {"input_tokens": 5, "output_tokens": 9}
    assert (found["stop_reason"], found["broken"]) == ("max_tokens", None)
    # Counts of the first event are of no whole answer; some servers repeat them in every chunk.
    for part in (events[:1], [chunk(usage=USAGE)]):
        assert merged_stream({"response": part})["response"]["broken"]


def test_a_stream_without_its_end_is_broken_and_other_rows_stay():
    assert merged_stream({"response": [chunk(), chunk(index=1)]})["response"]["broken"]
    for odd in (5, [5], [{"index": [1]}]):
        assert merged_stream({"response": [chunk(choices=odd)]})["response"]["broken"]
    row = {"response": {"usage": USAGE}, "output": ["text"]}
    assert merged_stream(row) is row
