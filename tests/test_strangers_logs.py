"""Logs as strangers bring them: the right requests, or an error with the way out, per command."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lengthwise.__main__ import main as lengthwise
from scheduler_adapters.__main__ import main as scheduler_adapters
from scheduler_adapters.timeline.timeline import read_timeline
from tests.lengthwise.tables.gateways.test_vllm_log import end, start
from tests.lengthwise.tables.log_matrix import as_lines
from training.__main__ import main as training

Row = dict[str, Any]
SKIP, DAY = "--on-bad-rows=skip", "2026-05-04T08:00:0"


def chat(second: int, size: int, output: int) -> Row:
    """A row in OpenAI's words, of a second of one day."""
    usage = {"prompt_tokens": size, "completion_tokens": output, "total_tokens": size + output}
    request = {"messages": [{"role": "user", "content": f"prompt {second}"}]}
    return {"request": request, "response": {"usage": usage}, "timestamp": f"{DAY}{second}Z"}


def spent(second: int, text: str = "hi", **more: Any) -> Row:
    """A row of LiteLLM's spend logs: 6 prompt tokens, 50 tokens."""
    row = {"call_type": "acompletion", "status": "success", "startTime": f"{DAY}{second}Z"}
    row |= {"prompt_tokens": 6, "completion_tokens": 50, "total_tokens": 56, "model": "v/m"}
    return (
        row | {"messages": [{"role": "user", "content": text}], "request_id": f"s{second}"} | more
    )


def maps() -> bytes:
    """Langfuse's export as ClickHouse writes it, with MAP columns."""
    columns: Row = {name: ["g0", "g1"] for name in ("id", "trace_id", "input", "type")}
    columns |= {"type": ["GENERATION"] * 2, "start_time": [f"{DAY}0.5", f"{DAY}2.25"]}
    usage = [[("input", 8), ("output", 21)], [("output", 3)]]
    columns["usage_details"] = pa.array(usage, pa.map_(pa.string(), pa.uint64()))
    pq.write_table(pa.table(columns), out := pa.BufferOutputStream())
    return bytes(out.getvalue())


def in_json(text: str) -> bytes:
    """Lines of vLLM's log as a JSON formatter writes them, with year and milliseconds."""
    found = [re.fullmatch(r"\(.*\) \w+ [\d-]+ (\S+) \[.*?\] (.*)", x) for x in text.splitlines()]
    return as_lines([{"asctime": f"2026-05-04 {m[1]},300", "message": m[2]} for m in found if m])


ONCE, TWICE = chat(0, 5, 9), chat(1, 5, 8)
AT = [f"05-04 08:00:0{n}" for n in range(4)]
X = start("chatcmpl-x", "p", 3, AT[0]) + end("chatcmpl-x", 7, at=AT[1])
Y = start("chatcmpl-y", "q", 2, AT[2]) + end("chatcmpl-y", 4, at=AT[3])
BURST = "Timestamp,Model,Request tokens,Response tokens\n7,A,30,4\n9,A,5,0\n12,B,6,8\n"
SPACES = "at,size in,size out\n0,3,4\n"
NAMED = ["--prompt-tokens-column=size in", "--length-column=size out", "--arrival-column=at"]
FROM_0 = [{"prompt_tokens": 2, "output_tokens": 3, "arrival_s": at} for at in (0, 4)]
TWO_LOGS = {"1.jsonl": FROM_0, "2.jsonl": [row | {"output_tokens": 5} for row in FROM_0]}
EARLY = "prompt_tokens,output_tokens,arrival_s\n2,3,0\n2,5,-1\n2,4,6\n"
CASES: list[tuple[str, dict[str, Any], list[str], Any]] = [
    ("BurstGPT", {"t.csv": BURST}, [], [(30, 4, 0), (6, 8, 5)]),
    ("spaces", {"t.csv": SPACES}, [], "'size in', 'size out'; give --prompt-tokens-column COLUMN"),
    ("spaces", {"t.csv": SPACES}, [*NAMED, "--time-unit=ms"], [(3, 4, 0)]),
    ("early", {"t.csv": EARLY}, [], r"row 1: its time is out of range \(-1\)"),
    ("early", {"t.csv": EARLY}, [SKIP], [(2, 3, 0), (2, 4, 6)]),
    ("folder", {"a/b.jsonl": [ONCE], "c.jsonl": [TWICE]}, [], [(5, 9, 0), (5, 8, 1)]),
    ("two logs", TWO_LOGS, [], "several files start at 0 s; give --file-times together"),
    ("two logs", TWO_LOGS, ["--file-times=in-turn"], [(2, 3, 0), (2, 3, 4), (2, 5, 4), (2, 5, 8)]),
    ("pieces", TWO_LOGS, ["--file-times=together"], [(2, 3, 0), (2, 5, 0), (2, 3, 4), (2, 5, 4)]),
    ("maps", {"o.parquet": maps()}, [SKIP], [(8, 21, 0)]),
    ("in JSON", {"v.log": in_json(X + Y)}, [], [(3, 7, 0), (2, 4, 2)]),
]


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (path := folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = as_lines(content) if isinstance(content, list) else content
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


@pytest.mark.parametrize(("name", "files", "options", "right"), CASES)
def test_a_strangers_log_is_replayed_or_a_way_out_is_named(
    tmp_path, capsys, name, files,
    options, right,
):  # fmt: skip
    trace, out = write(tmp_path / "in", files), tmp_path / "timeline.jsonl"
    command = ["simulate", "--policy=fcfs", f"--out={out}", f"--trace={trace}"]
    code = scheduler_adapters([*command, *options])
    if isinstance(right, str):
        assert (code, out.exists()) == (2, False)
        assert re.search(right, capsys.readouterr().err)
    else:
        assert code == 0
        found = read_timeline(out).requests
        rows = zip(found.prompt_tokens, found.output_tokens, found.arrival_s, strict=True)
        assert [(size, output, round(at, 3)) for size, output, at in rows] == right


def test_inspect_names_the_model_of_an_empty_group(tmp_path, capsys):
    rows = [spent(0, "a", model_group=""), spent(1, "b", model_group="g")]
    assert lengthwise(["inspect", str(write(tmp_path, {"l.jsonl": rows})), "--json"]) == 0
    sample = json.loads(capsys.readouterr().out)["sample"]
    assert [(row["prompt"], row["model"]) for row in sample] == [("a", "v/m"), ("b", "g")]


@pytest.mark.parametrize(
    ("content", "right"),
    [
        ([spent(n, "redacted-by-litellm") for n in range(3)], "turn_off_message_logging"),
        (in_json(X.replace("'p'", r"'p\n'")), "vLLM, 1 of 1 rows.* p5 7, p50 7.*only 1 distinct"),
    ],
)
def test_fit_reads_a_strangers_log_or_names_what_is_wrong(
    tmp_path, capsys, caplog,
    content, right,
):  # fmt: skip
    data, out = write(tmp_path, {"l.log": content}) / "l.log", tmp_path / "out"
    with caplog.at_level("INFO"):
        assert training(["fit", "demo", "--data.dataset", str(data), "--out", str(out)]) == 2
    assert re.search(right, caplog.text + capsys.readouterr().err, re.DOTALL)
    assert not out.exists()
