"""`lengthwise inspect`: what is read from a log, before anything is computed."""

from dataclasses import field
from typing import Annotated, Any, Final

import numpy as np

from lengthwise.command_line.options import POSITIONAL, common_options
from lengthwise.settings import Range, settings
from lengthwise.strict_json import to_json
from lengthwise.tables.columns import ORIGINS, Log, quantiles
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log
from lengthwise.tables.requests import OPTIONS

_SAMPLE: Final = (
    *("prompt", "prompt_tokens", "output_tokens", "reasoning_tokens", "arrival_s", "model"),
)
_SHOWN: Final = 60


@settings
class InspectOptions(TraceOptions):
    """A log, and the form of the output."""

    log: tuple[str, ...] = field(metadata=POSITIONAL)
    """Files, folders or patterns, read as one log; - is the standard input."""
    rows: Annotated[int, Range(least=-1)] = 5
    """First rows that are shown; -1: all."""
    json: bool = False
    """Print one JSON object."""


@common_options(
    *("log", "json", "rows", "prompt_column", "length_column", "time_unit", "file_times"),
    "censored",
)
def inspect(options: InspectOptions) -> None:
    """Show what is read from a log: format, rows kept and left out, sources, lengths and times.

    Bad rows are counted, and what other commands refuse without an option is a warning.

    examples:
      lengthwise inspect gateway.jsonl.zst
      lengthwise inspect logs/ --json --rows -1
      kubectl logs vllm-0 | lengthwise inspect -
    """
    needs, wants = ("output_tokens", "arrival_s"), ("prompt", "prompt_tokens")
    log = read_log(options.log, options, needs=needs, wants=wants, is_lenient=True)
    found = as_json(log, options.rows)
    text = to_json(found) if options.json else text_of(log, found["sample"])
    print(text.encode(errors="replace").decode())


def as_json(log: Log, rows: int) -> dict[str, Any]:
    """Return the log as plain data, with its first rows; -1 for all."""
    frame = log.frame if rows < 0 else log.frame.head(rows)
    if "arrival_s" in frame:
        frame = frame.assign(arrival_s=(frame.arrival_s - frame.arrival_s.min()).round(6))
    frame = frame.reindex(columns=list(_SAMPLE)).astype(object)
    frame["model"] = frame.model.where(frame.model != "", None)
    return {
        "format": log.format,
        "files": list(log.files),
        "rows": len(log.frame),
        "left_out": dict(log.left_out),
        "warnings": list(log.warnings),
        "sources": dict(log.sources),
        "sample": frame.where(frame.notna(), None).to_dict("records"),
    }


def text_of(log: Log, sample: list[dict[str, Any]]) -> str:
    """Return the log in lines for a terminal."""
    # Times that are found and not understood are in the warnings.
    has_times = any("give --time-unit" in x or "give --file-times" in x for x in log.warnings)
    missing = [name for name in ORIGINS if name not in {*log.sources, *["arrival_s"] * has_times}]
    lines = [
        f"format      {log.format}, {len(log.files)} files",
        f"rows        {len(log.frame):,} of {log.num_rows:,}",
        *(f"left out    {count:,} {reason}" for reason, count in log.left_out.items()),
        *(f"warning     {text}" for text in log.warnings),
        *(f"{name:17} from {source}" for name, source in log.sources.items()),
        *(f"{n:17} not found; if a column holds it, {OPTIONS[n]} COLUMN" for n in missing),
        *[f"not read    {', '.join(log.unread)}"] * bool(log.unread),
        *(f"{n:17} {quantiles(log.frame[n])}" for n in _SAMPLE[1:4] if n in log.frame),
    ]
    if "arrival_s" in log.frame and len(log.frame) > 1:
        lines.append(f"{'gaps in seconds':17} {quantiles(np.diff(log.frame.arrival_s))}")
    for row in sample:
        prompt = str(row["prompt"] or "-").replace("\n", " ")[:_SHOWN]
        numbers = [f"{name} {row[name]}" for name in _SAMPLE[1:] if row[name] is not None]
        lines.append(f"row         {prompt!r}: {', '.join(numbers)}")
    return "\n".join(lines)
