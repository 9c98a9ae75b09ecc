from __future__ import annotations

import json
import logging

from scoring_service.logs import JsonFormatter


def test_a_json_log_line_is_one_object_with_the_trace_inside():
    try:
        raise ValueError("why\nindeed")
    except ValueError:
        record = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, "f", 1, "failed on %s", ("this",), __import__("sys").exc_info()
        )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["message"] == "failed on this"
    assert "indeed" in entry["exception"]
