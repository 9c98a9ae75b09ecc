"""Outcome of each quirk in each format of a log: the table of docs/guides/logs.md.

PYTHONPATH=. python tests/lengthwise/tables/log_matrix.py --write
"""

import csv
import gzip
import io
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lengthwise.errors import DataError
from lengthwise.tables.log_reader import Log
from lengthwise.tables.options import SKIP, TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables.test_vllm_log import end, start

DOCS: Final = Path(__file__).parents[3] / "docs/guides/logs.md"
NEEDS: Final = ("prompt", "prompt_tokens", "output_tokens", "arrival_s")


class Sent(NamedTuple):
    """A request as it was sent and answered."""

    prompt: str
    size: int
    output: int
    reasoning: int
    at_s: int


SENT: Final = (
    Sent("one", 9, 10, 4, 0),
    Sent("two", 7, 30, 12, 2),
    Sent("three", 5, 20, 4, 5),
)
PLANES: Final = "".join(chr(plane * 0x10000 + 0x1234) for plane in range(17)) + "\u2028\x85\",;'\n"
HALF: Final = "half \ud83d"
QUIRKS: Final = (
    *("none", "several answers", "censored", "cached input", "hit of a cache"),
    *("reasoning inside", "reasoning beside", "reasoning in the total only", "no usage"),
    *("tool calls", "images", "no time", "row twice", "id twice", "rotated", ".gz", ".zst"),
    *("byte order mark", "CRLF", "half a surrogate pair", "every plane"),
)
"""Quirks of the second of three requests, or of the file."""
_NEVER_RIGHT: Final = (
    *("several answers", "censored", "hit of a cache", "row twice", "half a surrogate pair"),
)


def _shared(sent: Sent, quirk: str) -> tuple[list[Any], dict[str, int], str, list[Any]]:
    """Return messages, counts, the reason of the end, and choices."""
    is_beside = quirk in ("reasoning beside", "reasoning in the total only")
    count = {"prompt": sent.size, "output": sent.output - sent.reasoning * is_beside}
    if quirk != "reasoning in the total only":
        count["reasoning"] = sent.reasoning
    count["total"] = sent.size + sent.output
    text = {"type": "text", "text": sent.prompt}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: list[Any] = [
        {"role": "user", "content": [text, image] if quirk == "images" else sent.prompt}
    ]
    if quirk == "tool calls":
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": "c", "content": "4"}]
    finish = {"censored": "length", "tool calls": "tool_calls"}.get(quirk, "stop")
    number = 2 if quirk == "several answers" else 1
    return messages, count, finish, [{"index": n, "finish_reason": finish} for n in range(number)]


def _openai(sent: Sent, quirk: str) -> dict[str, Any]:
    messages, count, _, choices = _shared(sent, quirk)
    usage: dict[str, Any] = {"prompt_tokens": count["prompt"], "completion_tokens": count["output"]}
    usage |= {"total_tokens": count["total"]}
    if "reasoning" in count:
        usage["completion_tokens_details"] = {"reasoning_tokens": count["reasoning"]}
    if quirk == "cached input":
        usage["prompt_tokens_details"] = {"cached_tokens": 4}
    response = {"choices": choices, "usage": None if quirk == "no usage" else usage}
    row = {"request_id": "r1" if quirk == "id twice" else f"r{sent.at_s}", "response": response}
    row |= {"request": {"model": "m", "messages": messages}, "timestamp": 1.7e9 + sent.at_s}
    return row | {"cache_hit": quirk == "hit of a cache"}


def _litellm(sent: Sent, quirk: str) -> dict[str, Any]:
    row, (_, count, *_) = _openai(sent, quirk), _shared(sent, quirk)
    beside = 4 if quirk == "cached input" else 0
    counts = {"prompt_tokens": sent.size - beside, "completion_tokens": count["output"]}
    counts = {"total_tokens": count["total"]} | counts
    usage = row["response"]["usage"]
    if usage and beside:
        usage["cache_read_input_tokens"] = beside
    row |= dict.fromkeys(counts) if quirk == "no usage" else counts
    row |= {"call_type": "acompletion", "status": "success", "model_group": "", "model": "m"}
    row |= {"startTime": _iso(sent), "messages": row.pop("request")["messages"]}
    row |= {"cache_hit": str(row["cache_hit"])}
    del row["timestamp"]
    return row


def _iso(sent: Sent) -> str:
    return datetime.fromtimestamp(1.7e9 + sent.at_s, UTC).isoformat().replace("+00:00", "Z")


def _langfuse(sent: Sent, quirk: str) -> dict[str, Any]:
    messages, count, *_ = _shared(sent, quirk)
    beside = 4 if quirk == "cached input" else 0
    usage = {"input": sent.size - beside, "output": count["output"], "total": count["total"]}
    if "reasoning" in count:
        usage["output_reasoning_tokens"] = count["reasoning"]
    if beside:
        usage["input_cached_tokens"] = beside
    row: dict[str, Any] = {"id": "r1" if quirk == "id twice" else f"r{sent.at_s}", "traceId": "t"}
    row |= {"type": "GENERATION", "startTime": _iso(sent), "model": "m"}
    row |= {"modelParameters": {"max_tokens": sent.output}} if quirk == "censored" else {}
    return row | {
        "input": {"messages": messages},
        "usageDetails": {} if quirk == "no usage" else usage,
    }


def _table(sent: Sent, quirk: str) -> dict[str, Any]:
    messages, count, finish, _ = _shared(sent, quirk)
    is_chat = quirk in ("tool calls", "images")
    row = {"request_id": "r1" if quirk == "id twice" else f"r{sent.at_s}", "finish_reason": finish}
    row |= {"prompt": json.dumps(messages) if is_chat else sent.prompt, "arrival_s": sent.at_s}
    row |= {f"{name}_tokens": number for name, number in count.items()}
    if quirk == "no usage":
        del row["output_tokens"], row["total_tokens"]
    return row | {"cache_hit": quirk == "hit of a cache"}


def _vllm(sent: Sent, quirk: str) -> str:
    name = "chatcmpl-r1" if quirk == "id twice" else f"chatcmpl-r{sent.at_s}"
    number = 2 if quirk == "several answers" else 1
    more = f"SamplingParams(n={number}, max_tokens=900, logprobs=None)"
    answer = end(
        name,
        sent.output,
        {"censored": "length"}.get(quirk, "stop"),
        at=f"03-01 10:00:{sent.at_s + 1:02}",
    )
    if quirk == "no usage":
        answer = re.sub(r"output_token_ids: \[.*?\]", "output_token_ids: None", answer)
    begin = start(name, sent.prompt, sent.size, f"03-01 10:00:{sent.at_s:02}", more)
    return begin + answer * number


def _as_csv(rows: list[Any]) -> bytes:
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, names)
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode(errors="surrogatepass")


def _as_parquet(rows: list[Any]) -> bytes:
    for row in rows:  # Arrow's texts hold no half of a pair, its bytes do
        row["prompt"] = row["prompt"].encode(errors="surrogatepass")
    sink = io.BytesIO()
    names = dict.fromkeys(name for row in rows for name in row)
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), sink)
    return sink.getvalue()


def _as_lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


Made = tuple[Callable[[Sent, str], Any], Callable[[list[Any]], bytes], str, str]
FORMATS: Final[dict[str, Made]] = {
    "OpenAI": (_openai, _as_lines, ".jsonl", "timestamp"),
    "LiteLLM": (_litellm, _as_lines, ".jsonl", "startTime"),
    "Langfuse": (_langfuse, _as_lines, ".jsonl", "startTime"),
    "vLLM": (_vllm, lambda parts: "".join(parts).encode(), ".log", ""),
    "table, CSV": (_table, _as_csv, ".csv", "arrival_s"),
    "table, JSON lines": (_table, _as_lines, ".jsonl", "arrival_s"),
    "table, Parquet": (_table, _as_parquet, ".parquet", "arrival_s"),
}
_ROW_EACH: Final = "a row of a table is one answer"
_NO_TEXT: Final = "a file of bytes"
_COUNTS_IDS: Final = "its lengths are numbers of token ids"
NONE: Final[dict[tuple[str, str], str]] = {
    **{(name, "several answers"): _ROW_EACH for name in FORMATS if name.startswith("table")},
    **{(name, "cached input"): "its columns are counts" for name in FORMATS if "table" in name},
    ("Langfuse", "several answers"): "an observation is one answer",
    ("Langfuse", "hit of a cache"): "such a hit is no generation",
    **{("table, Parquet", quirk): _NO_TEXT for quirk in ("byte order mark", "CRLF")},
    **{("vLLM", quirk): _COUNTS_IDS for quirk in QUIRKS[5:8]},
    **{("vLLM", quirk): "it logs requests to the engine" for quirk in QUIRKS[3:5]},
    **{("vLLM", quirk): "it logs the prompt after its template" for quirk in QUIRKS[9:11]},
    ("vLLM", "no time"): "each of its lines has a time",
}
"""Cells without such a log, and why."""


def write(folder: Path, name: str, quirk: str) -> None:
    """Write three requests, the second of them or the file with a quirk."""
    make, encode, suffix, time = FORMATS[name]
    odd = {"half a surrogate pair": HALF, "every plane": PLANES}.get(quirk, SENT[1].prompt)
    sent = (SENT[0], SENT[1]._replace(prompt=odd), SENT[2])
    is_id = quirk == "id twice"
    rows = [make(one, quirk if n == 1 or (is_id and n == 0) else "") for n, one in enumerate(sent)]
    if quirk == "no time":
        del rows[1][time]
    if quirk == "row twice":
        rows.insert(2, make(sent[1], ""))
    if quirk == "rotated":
        for number, row in enumerate(reversed(rows)):
            end_of = f".{number}" if number else ""
            (folder / f"log{suffix}{end_of}").write_bytes(encode([row]))
        return
    content = encode(rows)
    content = b"\xef\xbb\xbf" + content if quirk == "byte order mark" else content
    if quirk == "CRLF":
        content = content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    if quirk == ".gz":
        content = gzip.compress(content)
    elif quirk == ".zst":
        content = pa.Codec("zstd").compress(content, asbytes=True)
    (folder / f"log{suffix}{quirk if quirk[0] == '.' else ''}").write_bytes(content)


def outcome(folder: Path, name: str, quirk: str) -> str:
    """Return what becomes of a log; an AssertionError if it is none of the right outcomes."""
    if (name, quirk) in NONE:
        return f"none: {NONE[name, quirk]}"
    write(folder, name, quirk)
    try:
        log, said = read_log(folder, TraceOptions(), needs=NEEDS), ""
    except DataError as error:
        reason = re.fullmatch(
            rf".*log\S*, row \d: (.*?)(?: \(.*\))?; {re.escape(SKIP)}", str(error)
        )
        if reason is None:
            raise
        said = f"refused: {reason[1]}"
        log = read_log(folder, TraceOptions(on_bad_rows="skip"), needs=NEEDS)
    got, (first, second, third) = _read(log), SENT
    second = second._replace(prompt=PLANES if quirk == "every plane" else second.prompt)
    if not said and log.left_out:
        said = "left out: " + " and ".join(log.left_out)
    if said and quirk != "row twice":  # whose first copy stays
        assert sum(log.left_out.values()) == 1
        wanted = [first, third]
    else:
        wanted = [first, second, third]
    if name == "vLLM" and quirk == "several answers":
        wanted.insert(1, second)
    has_reasoning = quirk.startswith("reasoning")
    for one, right in zip(got, wanted, strict=True):
        right = right._replace(at_s=right.at_s - wanted[0].at_s)
        assert (*one[:3], one[4]) == (*right[:3], right[4])
        assert not has_reasoning or one[3] == right.reasoning
    assert said or quirk not in _NEVER_RIGHT or name == "vLLM"
    return said or "right"


def _read(log: Log) -> list[Sent]:
    frame = log.frame.reindex(columns=["prompt", *NEEDS[1:3], "reasoning_tokens", "arrival_s"])
    return [Sent(*row) for row in frame.itertuples(index=False)]


def table(cells: dict[tuple[str, str], str]) -> str:
    """Return the table in Markdown: a row per quirk, formats grouped by what becomes of it."""
    kinds = ("right", "left out", "refused", "none")
    lines = ["| quirk | read right | left out and counted | refused | no such log |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for quirk in QUIRKS:
        found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for name in FORMATS:
            kind, _, reason = cells[name, quirk].partition(": ")
            found[kind][reason].append(name.removeprefix("table, "))
        texts = [
            "; ".join(
                ", ".join(names) + (f": {reason}" if reason else "")
                for reason, names in found[kind].items()
            )
            for kind in kinds
        ]
        lines.append(f"| {quirk} | {' | '.join(texts)} |")
    return "\n".join(lines).replace("|  ", "| ") + "\n"


def cells() -> dict[tuple[str, str], str]:
    """Return the outcome of each cell."""
    found = {}
    for name in FORMATS:
        for quirk in QUIRKS:
            with tempfile.TemporaryDirectory() as folder:
                found[name, quirk] = outcome(Path(folder), name, quirk)
    return found


if __name__ == "__main__":
    made = table(cells())
    if "--write" in sys.argv:
        head, _, _ = DOCS.read_text().partition("| quirk |")
        DOCS.write_text(head + made)
    print(made)
