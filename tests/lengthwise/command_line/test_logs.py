"""One printable line per record, as text or as JSON."""

import json
import logging

import pytest

from lengthwise.command_line.logs import JsonFormatter, configure_logs


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


@pytest.mark.parametrize("kind", ["text", "json"])
def test_what_a_client_sends_is_no_line_of_the_log(kind, capsys, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    configure_logs(kind)
    forged = "id\n2026-11-23 ERROR all is lost\r\x1b[2J\u2028\x85\x7f"
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("x").exception("no target %s", forged)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].isprintable()
    assert all(line.startswith("  ") and line.isprintable() for line in lines[1:])
    assert len(lines) == 1 if kind == "json" else len(lines) > 1
