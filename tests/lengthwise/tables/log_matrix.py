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
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lengthwise.errors import DataError
from lengthwise.tables.options import SKIP, TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables.gateways.test_vllm_log import end, start

DOCS: Final = Path(__file__).parents[3] / "docs/guides/logs.md"
NEEDS: Final = ("prompt", "prompt_tokens", "output_tokens", "arrival_s")
Rows = list[dict[str, Any]]


class Sent(NamedTuple):
    """A request as it was sent and answered."""

    prompt: str
    size: int
    output: int
    reasoning: int
    at_s: int


SENT: Final = (Sent("one", 9, 10, 4, 0), Sent("two", 7, 30, 12, 2), Sent("three", 5, 20, 4, 5))
PLANES: Final = "".join(chr(plane * 0x10000 + 0x1234) for plane in range(17)) + "\u2028\x85\",;'\n"
ODD: Final = {"half a surrogate pair": "half \ud83d", "every plane": PLANES}
NEVER_RIGHT: Final = ("several answers", "censored", "hit of a cache", "row twice", *list(ODD)[:1])
REASONING: Final = ("reasoning inside", "reasoning beside", "reasoning in the total only")
OF_TEXT: Final = ("byte order mark", "CRLF")
QUIRKS: Final = (
    *("none", "several answers", "censored", "cached input", "hit of a cache", *REASONING),
    *("no usage", "tool calls", "images", "no time", "row twice", "id twice", "rotated"),
    *(".gz", ".zst", *OF_TEXT, *ODD),
)
"""Quirks of the second of three requests, or of the file."""


def _shared(sent: Sent, quirk: str) -> tuple[str, list[Any], dict[str, int], str, int]:
    """Return id, messages, counts, the reason of the end, and the number of answers."""
    count = {"input": sent.size, "output": sent.output, "total": sent.size + sent.output}
    count["output"] -= sent.reasoning * (quirk in REASONING[1:])
    if quirk != REASONING[2]:
        count["reasoning"] = sent.reasoning
    content: Any = sent.prompt
    if quirk == "images":
        content = [{"type": "text", "text": sent.prompt}, {"type": "image_url", "image_url": {}}]
    messages = [{"role": "user", "content": content}]
    if quirk == "tool calls":
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": "c", "content": "4"}]
    finish = {"censored": "length", "tool calls": "tool_calls"}.get(quirk, "stop")
    name = "r1" if quirk == "id twice" else f"r{sent.at_s}"
    return name, messages, count, finish, 2 if quirk == "several answers" else 1


def _openai(sent: Sent, quirk: str) -> dict[str, Any]:
    name, messages, count, finish, number = _shared(sent, quirk)
    usage: dict[str, Any] = {"prompt_tokens": sent.size, "completion_tokens": count["output"]}
    usage |= {"total_tokens": count["total"]}
    if "reasoning" in count:
        usage["completion_tokens_details"] = {"reasoning_tokens": count["reasoning"]}
    if quirk == "cached input":
        usage["prompt_tokens_details"] = {"cached_tokens": 4}
    response: dict[str, Any] = {"choices": [{"finish_reason": finish}] * number}
    response["usage"] = None if quirk == "no usage" else usage
    row = {"request_id": name, "request": {"messages": messages}, "response": response}
    return row | {"timestamp": 1.7e9 + sent.at_s, "cache_hit": quirk == "hit of a cache"}


def _iso(sent: Sent) -> str:
    return datetime.fromtimestamp(1.7e9 + sent.at_s, UTC).isoformat().replace("+00:00", "Z")


def _litellm(sent: Sent, quirk: str) -> dict[str, Any]:
    row, beside = _openai(sent, quirk), 4 if quirk == "cached input" else 0
    usage = row["response"]["usage"] or {}
    usage |= {"cache_read_input_tokens": beside} if beside else {}
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    row |= {name: usage.get(name) for name in names} | {"cache_hit": str(row["cache_hit"])}
    row |= {"prompt_tokens": sent.size - beside} if usage else {}
    row |= {"call_type": "acompletion", "status": "success", "startTime": _iso(sent)}
    return row | {"messages": row.pop("request")["messages"], "timestamp": None}


def _helicone(sent: Sent, quirk: str) -> dict[str, Any]:
    row = _openai(sent, quirk)
    hit = {"cache_reference_id": "r0"} if row["cache_hit"] else {}
    row = {"request_id": row["request_id"], "request_body": row["request"]} | hit | {
        "response_body": row["response"], "request_created_at": _iso(sent),
    }  # fmt: skip
    return row | {"response_status": 200}


def _portkey(sent: Sent, quirk: str) -> dict[str, Any]:
    row = _openai(sent, quirk)
    usage = row["response"]["usage"] or {}
    found = {"id": row["request_id"], "created_at": _iso(sent), "ai_model": "m", "status_code": 200}
    found |= {name: {"body": row[name]} for name in ("request", "response")}
    found |= {"response_tokens": usage.get("completion_tokens")}
    return found | {"cache_status": "HIT"} if row["cache_hit"] else found


def _bedrock(sent: Sent, quirk: str) -> dict[str, Any]:
    name, messages, count, finish, _ = _shared(sent, quirk)
    beside = 4 if quirk == "cached input" else 0
    usage = {"inputTokens": sent.size - beside, "outputTokens": count["output"]}
    usage |= {"totalTokens": count["total"], "cacheReadInputTokens": beside}
    for message in messages:
        content = message.get("content") or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        message["content"] = [{"text": part["text"]} for part in parts if "text" in part]
        message["content"] += [{"image": {"format": "png"}}] * (len(parts) > 1)
    if quirk == "tool calls":
        messages[2] = {"role": "user", "content": [{"toolResult": {"toolUseId": "c"}}]}
    reason = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use"}[finish]
    body = {"stopReason": reason, "usage": {} if quirk == "no usage" else usage}
    row = {"timestamp": _iso(sent), "modelId": "m", "schemaType": "ModelInvocationLog"}
    row |= {"requestId": name, "input": {"inputBodyJson": {"messages": messages}}}
    return row | {"output": {"outputBodyJson": body}}


def _langfuse(sent: Sent, quirk: str) -> dict[str, Any]:
    name, messages, count, *_ = _shared(sent, quirk)
    beside = 4 if quirk == "cached input" else 0
    count["input"] -= beside
    details = {"reasoning": "output_reasoning_tokens"}
    usage = {details.get(key, key): number for key, number in count.items()}
    usage |= {"input_cached_tokens": beside} if beside else {}
    row = {"id": name, "traceId": "t", "type": "GENERATION", "startTime": _iso(sent)}
    row |= {"modelParameters": {"max_tokens": sent.output}} if quirk == "censored" else {}
    usage = {} if quirk == "no usage" else usage
    return row | {"input": {"messages": messages}, "usageDetails": usage}


def _otel(sent: Sent, quirk: str) -> dict[str, Any]:
    name, messages, count, finish, number = _shared(sent, quirk)
    found = {f"{key}_tokens": count[key] for key in ("input", "output")}
    found |= {"total_tokens": count["total"]} if quirk in REASONING[1:] else {}
    found |= {"reasoning.output_tokens": count["reasoning"]} if "reasoning" in count else {}
    found |= {"cache_read.input_tokens": 4} if quirk == "cached input" else {}
    found = {} if quirk == "no usage" else found
    inner: dict[str, Any] = {f"gen_ai.usage.{key}": number for key, number in found.items()}
    inner |= {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(messages)}
    inner["gen_ai.response.finish_reasons"] = [finish] * number
    row = {"traceId": "t", "spanId": name, "startTimeUnixNano": str(1_700_000_000 + sent.at_s)}
    return row | {"startTimeUnixNano": row["startTimeUnixNano"] + "0" * 9, "attributes": inner}


def _table(sent: Sent, quirk: str) -> dict[str, Any]:
    name, messages, count, finish, _ = _shared(sent, quirk)
    text = json.dumps(messages) if quirk in ("tool calls", "images") else sent.prompt
    count["prompt"] = count.pop("input")
    count = {} if quirk == "no usage" else count
    row = {"request_id": name, "finish_reason": finish, "prompt": text, "arrival_s": sent.at_s}
    row |= {f"{name}_tokens": number for name, number in count.items()}
    return row | {"cache_hit": quirk == "hit of a cache"}


def _vllm(sent: Sent, quirk: str) -> str:
    name, _, _, finish, number = _shared(sent, quirk)
    at = [f"03-01 10:00:{sent.at_s + step:02}" for step in range(2)]
    more = f"SamplingParams(n={number}, max_tokens=900)"
    answer = end(f"chatcmpl-{name}", sent.output, finish, at=at[1])
    if quirk == "no usage":
        answer = re.sub(r"output_token_ids: \[.*?\]", "output_token_ids: None", answer)
    return start(f"chatcmpl-{name}", sent.prompt, sent.size, at[0], more) + answer * number


def as_csv(rows: Rows, delimiter: str = ",") -> bytes:
    """Return the bytes of a CSV."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, names, delimiter=delimiter)
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode(errors="surrogatepass")


def as_parquet(rows: Rows) -> bytes:
    """Return the bytes of a Parquet file; Arrow's texts hold no half of a pair, its bytes do."""
    rows = [row | {"prompt": row["prompt"].encode(errors="surrogatepass")} for row in rows]
    sink, names = io.BytesIO(), dict.fromkeys(name for row in rows for name in row)
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), sink)
    return sink.getvalue()


def as_lines(rows: Rows) -> bytes:
    """Return the bytes of JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def packed(content: bytes, suffix: str) -> bytes:
    """Return the content, compressed as its suffix states."""
    if suffix == ".gz":
        return gzip.compress(content)
    return pa.Codec("zstd").compress(content, asbytes=True) if suffix == ".zst" else content


Made = tuple[Callable[[Sent, str], Any], Callable[[list[Any]], bytes], str, str]
FORMATS: Final[dict[str, Made]] = {
    "OpenAI": (_openai, as_lines, ".jsonl", "timestamp"),
    "LiteLLM": (_litellm, as_lines, ".jsonl", "startTime"),
    "Langfuse": (_langfuse, as_lines, ".jsonl", "startTime"),
    "OpenTelemetry": (_otel, as_lines, ".jsonl", "startTimeUnixNano"),
    "Helicone": (_helicone, as_lines, ".jsonl", "request_created_at"),
    "Portkey": (_portkey, as_lines, ".jsonl", "created_at"),
    "Bedrock": (_bedrock, as_lines, ".jsonl", "timestamp"),
    "vLLM": (_vllm, lambda parts: "".join(parts).encode(), ".log", ""),
    "CSV": (_table, as_csv, ".csv", "arrival_s"),
    "JSON lines": (_table, as_lines, ".jsonl", "arrival_s"),
    "Parquet": (_table, as_parquet, ".parquet", "arrival_s"),
}
_TABLES: Final = ("CSV", "JSON lines", "Parquet")
NONE: Final[dict[tuple[str, str], str]] = {
    **{
        (name, "several answers"): "a row is one answer"
        for name in (*_TABLES, "Langfuse", "Bedrock")
    },
    **{(name, "cached input"): "no column has it" for name in _TABLES},
    **{(name, "hit of a cache"): "no call of a model" for name in ("Langfuse", "OpenTelemetry")},
    **{("Bedrock", quirk): "no count has it" for quirk in REASONING},
    ("Bedrock", "hit of a cache"): "no cache answers",
    **{("Parquet", quirk): "a file of bytes" for quirk in OF_TEXT},
    **{("vLLM", quirk): "token ids are counted" for quirk in (*REASONING, "cached input")},
    **{("vLLM", quirk): "no cache answers" for quirk in ("hit of a cache",)},
    **{("vLLM", quirk): "prompts follow a template" for quirk in ("tool calls", "images")},
    ("vLLM", "no time"): "each line has a time",
}
"""Cells without such a log, and why."""


def write(folder: Path, name: str, quirk: str) -> None:
    """Write three requests, the second of them or the file with a quirk."""
    make, encode, suffix, time = FORMATS[name]
    sent = (SENT[0], SENT[1]._replace(prompt=ODD.get(quirk, SENT[1].prompt)), SENT[2])
    odd = (0, 1) if quirk == "id twice" else (1,)
    rows = [make(one, quirk if n in odd else "") for n, one in enumerate(sent)]
    if quirk == "no time":
        del rows[1][time]
    rows[2:2] = [make(sent[1], "")] * (quirk == "row twice")
    pieces = {"": rows}
    if quirk == "rotated":
        pieces = {"": rows[2:], ".1": rows[1:2], ".2": rows[:1]}
    for age, piece in pieces.items():
        content = b"\xef\xbb\xbf" * (quirk == OF_TEXT[0]) + encode(piece)
        if quirk == "CRLF":
            content = content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        more = age + (quirk if quirk[0] == "." else "")
        (folder / f"log{suffix}{more}").write_bytes(packed(content, more))


def outcome(folder: Path, name: str, quirk: str) -> str:
    """Return what becomes of a log; an AssertionError if it is none of the right outcomes."""
    if (name, quirk) in NONE:
        return f"none: {NONE[name, quirk]}"
    write(folder, name, quirk)
    try:
        log, said = read_log(folder, TraceOptions(), needs=NEEDS), ""
    except DataError as error:
        pattern = rf".*log\S*, row \d: (.*?)(?: \(.*\))?; {re.escape(SKIP)}"
        if (reason := re.fullmatch(pattern, str(error))) is None:
            raise
        said = f"refused: {reason[1]}"
        log = read_log(folder, TraceOptions(on_bad_rows="skip"), needs=NEEDS)
    if not said and log.left_out:
        said = "left out: " + " and ".join(log.left_out)
    wanted = [one._replace(prompt=PLANES) if quirk == "every plane" else one for one in SENT]
    wanted = [SENT[0], wanted[1], SENT[2]]
    if said and quirk != "row twice":  # whose first copy stays
        del wanted[1]
    wanted[1:1] = wanted[1:2] * (name == "vLLM" and quirk == "several answers")
    assert sum(log.left_out.values()) == bool(said)
    frame = log.frame.reindex(columns=[*NEEDS[:3], "reasoning_tokens", NEEDS[3]])
    for row, right in zip(frame.itertuples(index=False), wanted, strict=True):
        assert (*row[:3], row[4]) == (*right[:3], right.at_s)
        assert quirk not in REASONING or row[3] == right.reasoning
    assert said or quirk not in NEVER_RIGHT or name == "vLLM"
    return said or "right"


def table(cells: dict[tuple[str, str], str]) -> str:
    """Return the table in Markdown: a row per quirk, formats grouped by what becomes of it."""
    lines = ["| quirk | read right | left out and counted | refused | no such log |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for quirk in QUIRKS:
        texts = dict.fromkeys(("right", "left out", "refused", "none"), "")
        for said in dict.fromkeys(cells[name, quirk] for name in FORMATS):
            names = ", ".join(name for name in FORMATS if cells[name, quirk] == said)
            kind, colon, reason = said.partition(": ")
            texts[kind] += f"{'; ' * bool(texts[kind])}{names}{colon}{reason}"
        lines.append(f"| {quirk} | {' | '.join(texts.values())} |")
    return re.sub(" +", " ", "\n".join(lines)) + "\n"


def cells() -> dict[tuple[str, str], str]:
    """Return the outcome of each cell."""
    found = {}
    for name, quirk in ((name, quirk) for name in FORMATS for quirk in QUIRKS):
        with tempfile.TemporaryDirectory() as folder:
            found[name, quirk] = outcome(Path(folder), name, quirk)
    return found


if __name__ == "__main__":
    made = table(cells())
    if "--write" in sys.argv:
        DOCS.write_text(DOCS.read_text().partition("| quirk |")[0] + made)
    print(made)
