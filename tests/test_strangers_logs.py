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


def chat(second: int | None, size: int, output: int, total: int, thought: int = 0) -> Row:
    """A row in OpenAI's words, of a second of one day."""
    usage: Row = {"prompt_tokens": size, "completion_tokens": output, "total_tokens": total}
    usage |= {"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}
    request = {"messages": [{"role": "user", "content": f"prompt {second}"}]}
    at = None if second is None else f"{DAY}{second}Z"
    return {"request": request, "response": {"usage": usage}, "timestamp": at}


def spent(second: int, text: str = "hi", **more: Any) -> Row:
    """A row of LiteLLM's spend logs: 6 prompt tokens, 50 tokens."""
    row = {"call_type": "acompletion", "status": "success", "startTime": f"{DAY}{second}Z"}
    row |= {"prompt_tokens": 6, "completion_tokens": 50, "total_tokens": 56, "model": "v/m"}
    return (
        row | {"messages": [{"role": "user", "content": text}], "request_id": f"s{second}"} | more
    )


def observed(second: int, **usage: int) -> Row:
    """A generation that Langfuse observed."""
    row = {"id": f"g{second}", "traceId": "t", "type": "GENERATION", "startTime": f"{DAY}{second}Z"}
    return row | {"input": f"prompt {second}", "usageDetails": usage}


def streamed(num_tokens: int) -> Row:
    """A row with the chunks of an answer, a token each; the last one has the usage."""
    row, chunk = chat(0, 4, num_tokens, 4 + num_tokens), {"object": "chat.completion.chunk"}
    parts = [{"choices": [{"index": 0, "delta": {"content": "x"}}]}] * num_tokens
    parts.append({"choices": []} | row["response"])
    return row | {"response": [chunk | part for part in parts]}


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


ONCE, TWICE, LATE = chat(0, 5, 9, 14), chat(1, 5, 8, 13), chat(None, 5, 8, 13)
MORE = chat(0, 5, 9, 14, 12)
HALF = TWICE | {"request": {"messages": [{"role": "user", "content": "\udc00 b"}]}}
TALK = [{"from": "human", "value": "How old is it?"}, {"from": "gpt", "value": "Very old indeed"}]
AT = [f"05-04 08:00:0{n}" for n in range(4)]
CUT = "(APIServer pid=7) INFO 05-04 07:00:00 [utils.py:1] non-default args: {'max_log_len': 8}\n"
X = start("chatcmpl-x", "p", 3, AT[0]) + end("chatcmpl-x", 7, at=AT[1])
Y = start("chatcmpl-y", "q", 2, AT[2]) + end("chatcmpl-y", 4, at=AT[3])
YEAR = X.replace("05-04 08:00:0", "12-31 23:59:5") + Y.replace("05-04 08", "01-01 00")
MANY = X.replace("n=1", "n=2") + end("chatcmpl-x", 2, at=AT[1])
BENCH = [f"chatcmpl-bench-0f0f0f0f-{n}" for n in range(2)]
BENCHED = "".join(start(name, "p", 3 + n, AT[n]) for n, name in enumerate(BENCH))
BENCHED += "".join(end(name, 5 + n, at=AT[3]) for n, name in enumerate(BENCH))
BURST = "Timestamp,Model,Request tokens,Response tokens\n7,A,30,4\n9,A,5,0\n12,B,6,8\n"
SPACES = "at,size in,size out\n0,3,4\n"
NAMED = ["--prompt-tokens-column=size in", "--length-column=size out", "--arrival-column=at"]
EPOCH = "prompt_tokens,output_tokens,arrived_at\n1,2,1777881600250\n1,3,1777881602000\n"
BESIDE = {"input": 90, "output": 10, "output_reasoning_tokens": 20, "total": 120}
CACHED = {"input": 7, "output": 40, "cache_read_input_tokens": 900, "total": 947}
HITS = [spent(0), spent(1, cache_hit="True"), spent(2, cache_hit=True)]
FROM_0 = [{"prompt_tokens": 2, "output_tokens": 3, "arrival_s": at} for at in (0, 4)]
TWO_LOGS = {"1.jsonl": FROM_0, "2.jsonl": [row | {"output_tokens": 5} for row in FROM_0]}
EARLY = "prompt_tokens,output_tokens,arrival_s\n2,3,0\n2,5,-1\n2,4,6\n"
CASES: list[tuple[str, dict[str, Any], list[str], Any]] = [
    ("BurstGPT", {"t.csv": BURST}, [], [(30, 4, 0), (6, 8, 5)]),
    ("spaces", {"t.csv": SPACES}, [], "'size in', 'size out'; give --prompt-tokens-column COLUMN"),
    ("spaces", {"t.csv": SPACES}, [*NAMED, "--time-unit=ms"], [(3, 4, 0)]),
    ("no unit", {"t.csv": SPACES}, NAMED, "at is 0 to 0, in no known unit; give --time-unit s, ms"),
    ("epoch", {"t.csv": EPOCH}, [], [(1, 2, 0), (1, 3, 1.75)]),
    ("early", {"t.csv": EARLY}, [], r"row 1: its time is out of range \(-1\)"),
    ("early", {"t.csv": EARLY}, [SKIP], [(2, 3, 0), (2, 4, 6)]),
    ("folder", {"a/b.jsonl": [ONCE], "c.jsonl": [TWICE]}, [], [(5, 9, 0), (5, 8, 1)]),
    ("two logs", TWO_LOGS, [], "several files start at 0 s; give --file-times together"),
    ("two logs", TWO_LOGS, ["--file-times=in-turn"], [(2, 3, 0), (2, 3, 4), (2, 5, 4), (2, 5, 8)]),
    ("pieces", TWO_LOGS, ["--file-times=together"], [(2, 3, 0), (2, 5, 0), (2, 3, 4), (2, 5, 4)]),
    ("cached", {"l.jsonl": [observed(0, **CACHED)]}, [], [(907, 40, 0)]),
    ("beside", {"l.jsonl": [observed(0, **BESIDE)]}, [], [(90, 30, 0)]),
    ("in both", {"l.jsonl": [observed(0, **BESIDE | {"output": 30})]}, [], [(90, 30, 0)]),
    ("maps", {"o.parquet": maps()}, [SKIP], [(8, 21, 0)]),
    ("hits", {"l.jsonl": HITS}, [], [(6, 50, 0)]),
    ("no time", {"l.jsonl": [ONCE, LATE, TWICE]}, [], "row 1: it has no time; .*--on-bad-rows"),
    ("no time", {"l.jsonl": [ONCE, LATE, TWICE]}, [SKIP], [(5, 9, 0), (5, 8, 1)]),
    ("half a pair", {"l.jsonl": [ONCE, HALF]}, [], "row 1: its prompt holds half a surrogate pair"),
    ("half a pair", {"l.jsonl": [ONCE, HALF]}, [SKIP], [(5, 9, 0)]),
    ("beside", {"l.jsonl": [chat(0, 20, 5, 75, 50)]}, [], [(20, 55, 0)]),
    ("inside", {"l.jsonl": [chat(0, 20, 60, 80, 50)]}, [], [(20, 60, 0)]),
    ("chunks", {"l.jsonl": [streamed(3)]}, [], [(4, 3, 0)]),
    ("too much", {"l.jsonl": [MORE, TWICE]}, [], "row 0: more reasoning than output"),
    ("too much", {"l.jsonl": [MORE, TWICE]}, [SKIP], [(5, 8, 0)]),
    ("words", {"s.json": [{"id": "1", "conversations": TALK}]}, [], "their tokens by --tokenizer"),
    ("in JSON", {"v.log": in_json(X + Y)}, [], [(3, 7, 0), (2, 4, 2)]),
    ("cut", {"v.log": CUT + start("x-1", "p", 8, AT[0]) + end("x-1", 8) + Y}, [], [(2, 4, 0)]),
    ("choices", {"v.log": MANY}, [], [(3, 2, 0), (3, 7, 0)]),
    ("year", {"v.log": YEAR}, [], [(3, 7, 0), (2, 4, 12)]),
    ("numbered", {"v.log": BENCHED}, [], [(3, 5, 0), (4, 6, 1)]),
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
    command = ["simulate", "--policy=fcfs", "--mlruns-dir=null", f"--out={out}", f"--trace={trace}"]
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
        ([{"prompt": "\ud800", "output_tokens": 3}], "row 0: its prompt holds half a"),
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


def test_evaluate_counts_reasoning_beside_the_completion(tmp_path, caplog, tiny_bundle):
    data = write(tmp_path, {"l.jsonl": [chat(0, 20, 5, 75, 50), chat(1, 20, 60, 80, 50)]})
    with caplog.at_level("INFO"):
        assert training(["evaluate", f"--bundle={tiny_bundle.path}", f"--data={data}"]) == 0
    assert re.search(r"output_tokens p5 55\.\d+, .*most 60", caplog.text)
