"""Write spans by the OpenTelemetry and Langfuse SDKs: `span_writer.py FOLDER < calls.json`.

Runs in .venv-gateways. A call has prompt, input, output, reasoning, start_ns, finish and style. The
files: console.json (ConsoleSpanExporter), otlp.jsonl (one ExportTraceServiceRequest a line, as the
Collector's file exporter writes), langfuse-spans.jsonl and langfuse.json (a page of the API).
"""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToJson
from langfuse import Langfuse
from langfuse.api import ObservationsV2Response, ObservationV2
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

SECOND_NS = 1_000_000_000
Call = dict[str, Any]


def newest(call: Call) -> dict[str, Any]:
    """Attributes of the semantic conventions since 1.37: messages with parts."""
    turns = [
        ("user", "an earlier turn"),
        ("assistant", "an earlier answer"),
        ("user", call["prompt"]),
    ]
    parts = [{"role": role, "parts": [{"type": "text", "content": x}]} for role, x in turns]
    return {
        "gen_ai.operation.name": call.get("operation", "chat"),
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 4096,
        "gen_ai.response.finish_reasons": [call["finish"]] * call.get("n", 1),
        "gen_ai.input.messages": json.dumps(parts),
        "gen_ai.usage.input_tokens": call["input"],
        "gen_ai.usage.output_tokens": call["output"],
        "gen_ai.usage.reasoning.output_tokens": call["reasoning"],
        **({"error.type": "timeout"} if call.get("fails") else {}),
    }


def oldest(call: Call) -> dict[str, Any]:
    """Attributes of the first conventions: one attribute for each part of a turn."""
    return {
        "gen_ai.system": "vendor",
        "llm.request.type": call.get("operation", "chat"),
        "gen_ai.request.model": "m",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be short.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": call["prompt"],
        "gen_ai.completion.0.finish_reason": call["finish"],
        "gen_ai.usage.prompt_tokens": call["input"],
        "gen_ai.usage.completion_tokens": call["output"],
        "llm.usage.total_tokens": call["input"] + call["output"],
    }


def write_spans(folder: Path, calls: list[Call]) -> None:
    provider, kept = TracerProvider(), InMemorySpanExporter()
    with (folder / "console.json").open("w") as console:
        for exporter in (kept, ConsoleSpanExporter(out=console)):
            provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("test")
        for call in calls:
            span = tracer.start_span("call", start_time=call["start_ns"])
            if call["style"] == "http":
                span.set_attribute("http.request.method", "POST")
            else:
                span.set_attributes(newest(call) if call["style"] == "newest" else oldest(call))
            if call.get("fails"):
                span.set_status(StatusCode.ERROR)
            span.end(call["start_ns"] + SECOND_NS)
    write_otlp(folder / "otlp.jsonl", kept.get_finished_spans())


def write_otlp(path: Path, spans: tuple[ReadableSpan, ...]) -> None:
    batches = [spans[:3], spans[3:]]
    lines = [MessageToJson(encode_spans(batch), indent=None) for batch in batches if batch]
    path.write_text("".join(f"{line}\n" for line in lines))


def write_langfuse_spans(path: Path, calls: list[Call]) -> None:
    kept = InMemorySpanExporter()
    keys = {"public_key": "pk-lf-test", "secret_key": "sk-lf-test"}
    client = Langfuse(**keys, base_url="http://127.0.0.1:9", span_exporter=kept)
    for call in calls:
        counts = {"input": call["input"], "output": call["output"]}
        with client.start_as_current_observation(
            as_type="generation" if call["style"] == "newest" else "tool",
            name="call",
            model="m",
            input=[{"role": "user", "content": call["prompt"]}],
        ) as generation:
            generation.update(
                usage_details={**counts, "total": sum(counts.values())},
                level="ERROR" if call.get("fails") else "DEFAULT",
            )
    client.flush()
    write_otlp(path, kept.get_finished_spans())


def write_observations(path: Path, calls: list[Call]) -> None:
    rows = []
    for number, call in enumerate(calls):
        start = datetime.fromtimestamp(call["start_ns"] / SECOND_NS, UTC)
        reasoning = call["reasoning"]
        usage = {"input": call["input"], "output": call["output"] - reasoning}
        usage |= {"output_reasoning_tokens": reasoning, "total": call["input"] + call["output"]}
        rows.append(
            ObservationV2(
                id=str(number),
                trace_id="t",
                project_id="p",
                start_time=start,
                end_time=start + timedelta(seconds=1),
                type="GENERATION" if call["style"] == "newest" else "TOOL",
                level="ERROR" if call.get("fails") else "DEFAULT",
                input=[{"role": "user", "content": call["prompt"]}],
                model="m",
                usage_details=usage,
            )
        )
    meta = {"cursor": None}
    path.write_text(ObservationsV2Response(data=rows, meta=meta).json())


if __name__ == "__main__":
    place, given = Path(sys.argv[1]), json.load(sys.stdin)
    write_spans(place, given)
    write_langfuse_spans(place / "langfuse-spans.jsonl", given)
    write_observations(place / "langfuse.json", given)
