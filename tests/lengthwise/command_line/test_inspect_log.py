"""Rows and sources of a log are shown before anything is computed."""

import io
import json
import sys
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from lengthwise.__main__ import main
from lengthwise.command_line.inspect_log import InspectOptions, inspect
from lengthwise.errors import DataError
from lengthwise.tables.files import _standard_input
from tests.lengthwise.tables import logs
from tests.lengthwise.tables.gateways.test_formats import STRANGERS

Capture = pytest.CaptureFixture[str]


def inspected(capsys: Capture, *arguments: object) -> dict[str, Any]:
    assert main(["inspect", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_the_result_has_counts_sources_and_the_first_rows(tmp_path, capsys):
    path = logs.write_lines(tmp_path / "log.jsonl", logs.OPENAI)
    found = inspected(capsys, path, "--rows", 1)
    assert (found["format"], found["files"], found["rows"]) == ("OpenAI", [str(path)], 4)
    assert found["left_out"] == {"it has response.error": 1}
    assert found["sources"]["arrival_s"] == "timestamp of a wall clock"
    names = ("prompt", "prompt_tokens", "output_tokens", "reasoning_tokens", "arrival_s", "model")
    assert [tuple(row) for row in found["sample"]] == [names]
    assert [tuple(row.values()) for row in inspected(capsys, path, "--rows=-1")["sample"]] == [
        ("one", 9, 10, 0, 0.0, "m"),
        ("two", 9, 20, 0, 2.5, "m"),
        ("three", 4, 30, 0, 2.5, "m"),
        ("four", 5, 40, 25, 5.0, "m"),
    ]
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "gaps in seconds" in text
    assert "rows        4 of 5" in text


def test_what_other_commands_refuse_is_a_warning_or_counted(tmp_path, capsys):
    rows: logs.Rows = [{"timestamp": n, "output_tokens": n} for n in (0, 500, 900)]
    path = logs.write_lines(tmp_path / "t.jsonl", [*rows, {"output_tokens": "x"}])
    found = inspected(capsys, path)
    assert (found["rows"], list(found["left_out"].values())) == (2, [1, 1])
    assert "--time-unit" in found["warnings"][0]
    assert found["sample"][0]["arrival_s"] is None
    assert main(["inspect", str(path)]) == 0
    assert "arrival_s" not in capsys.readouterr().out.replace(found["warnings"][0], "")
    starts: logs.Rows = [{"output_tokens": 3, "arrival_s": at} for at in (0, 4)]
    two = [logs.write_lines(tmp_path / f"{n}.jsonl", starts[: n + 1]) for n in range(2)]
    assert main(["inspect", *map(str, two)]) == 0
    assert "arrival_s         not found" not in capsys.readouterr().out
    in_ms = inspected(capsys, path, "--time-unit", "ms")
    assert [row["arrival_s"] for row in in_ms["sample"]] == [0.0, 0.4]


def test_columns_that_are_not_read_are_named(tmp_path, capsys):
    row = {"began": 17, "prompt": "a", "output_tokens": 5}
    assert main(["inspect", str(logs.write_lines(tmp_path / "t.jsonl", [row]))]) == 0
    text = capsys.readouterr().out
    assert "arrival_s         not found; if a column holds it, --arrival-column COLUMN" in text
    assert "not read    began\n" in text


def test_the_standard_input_is_a_log(capsys, monkeypatch):
    text = "".join(json.dumps(row) + "\n" for row in logs.OPENAI)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    _standard_input.cache_clear()
    assert inspected(capsys, "-")["rows"] == 4
    _standard_input.cache_clear()


def mutated(random: Random, row: Any) -> Any:
    """A row with one value, at any depth, in place of another or gone."""
    if not isinstance(row, dict | list) or not row or random.random() < 0.2:
        return random.choice(ODD)
    at = random.choice(list(row)) if isinstance(row, dict) else random.randrange(len(row))
    changed = row.copy()
    changed[at] = mutated(random, row[at])
    if isinstance(row, dict) and random.random() < 0.3:
        del changed[at]
    return changed


ODD = (
    None,
    "",
    0,
    -1,
    10**30,
    1.5,
    True,
    "x",
    "[",
    "{}",
    [],
    {},
    [[]],
    [None],
    {"a": {}},
    "\ud83d",
)


def test_no_mutation_of_a_log_ends_in_a_traceback(tmp_path):
    random, num_read = Random(55), 0
    for number, case in enumerate(STRANGERS):
        rows = [mutated(random, row) for row in case["rows"]] + case["rows"] * (number % 2)
        paths = logs.write_files(tmp_path, rows)
        text = paths[0].read_text()
        paths[0].write_text(text[: random.randrange(len(text)) if number % 3 == 0 else None])
        options = InspectOptions(log=tuple(map(str, paths)), json=number % 4 < 2)
        with suppress(DataError):
            inspect(options)
            num_read += 1
    assert num_read > 50


def test_wrong_settings_are_refused(capsys):
    assert main(["inspect", "absent.jsonl"]) == 2
    assert main(["inspect", "x", "--rows", "-2"]) == 2
    assert "does not exist" in capsys.readouterr().err
