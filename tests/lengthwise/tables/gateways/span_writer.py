"""Write spans by the OpenTelemetry and Langfuse SDKs: `span_writer.py FOLDER < calls.json`.

Runs in .venv-gateways. A call has prompt, input, output, reasoning, start_ns, finish and style. The
files: console.json (ConsoleSpanExporter), otlp.jsonl (one ExportTraceServiceRequest a line, as the
Collector's file exporter writes), langfuse-spans.jsonl and langfuse.json (a page of the API).
"""

import json
import sys
from datetime import UTC, datetime
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


def attributes_of(call: Call) -> dict[str, Any]:
    """Attributes of a call: by the conventions since 1.37, or by the first ones."""
    turns = [("user", "before"), ("assistant", "an answer"), ("user", call["prompt"])]
    texts = [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in turns]
    model, operation = {"gen_ai.request.model": "m"}, call.get("operation", "chat")
    if call["style"] == "newest":
        return model | {
            "gen_ai.operation.name": operation,
            "gen_ai.request.max_tokens": 4096,
            "gen_ai.response.finish_reasons": [call["finish"]] * call.get("n", 1),
            "gen_ai.input.messages": json.dumps(texts),
            "gen_ai.usage.input_tokens": call["input"],
            "gen_ai.usage.output_tokens": call["output"],
            "gen_ai.usage.reasoning.output_tokens": call["reasoning"],
        }
    if call["style"] == "http":
        return {"http.request.method": "POST"}
    for number, (role, text) in enumerate(turns):
        model |= {f"gen_ai.prompt.{number}.role": role, f"gen_ai.prompt.{number}.content": text}
    return model | {
        "llm.request.type": operation,
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
        for call in calls:
            span = provider.get_tracer("test").start_span("call", start_time=call["start_ns"])
            span.set_attributes(attributes_of(call))
            span.set_status(StatusCode.ERROR if call.get("fails") else StatusCode.UNSET)
            span.end(call["start_ns"] + SECOND_NS)
    write_otlp(folder / "otlp.jsonl", kept.get_finished_spans())


def write_otlp(path: Path, spans: tuple[ReadableSpan, ...]) -> None:
    lines = [MessageToJson(encode_spans(part), indent=None) for part in (spans[:3], spans[3:])]
    path.write_text("".join(f"{line}\n" for line in lines))


def write_langfuse(folder: Path, calls: list[Call]) -> None:
    kept, rows = InMemorySpanExporter(), []
    keys = {"public_key": "pk-lf-test", "secret_key": "sk-lf-test"}
    client = Langfuse(**keys, base_url="http://127.0.0.1:9", span_exporter=kept)
    for number, call in enumerate(calls):
        size, output, reasoning = call["input"], call["output"], call["reasoning"]
        told = {"input": [{"role": "user", "content": call["prompt"]}], "model": "m"}
        told |= {"level": "ERROR" if call.get("fails") else "DEFAULT"}
        usage = {"total": size + output}
        kind = "generation" if call["style"] == "newest" else "tool"
        with client.start_as_current_observation(as_type=kind, name="call", **told) as generation:
            generation.update(usage_details=usage | {"input": size, "output": output})
        usage |= {"input": size, "output": output - reasoning, "output_reasoning_tokens": reasoning}
        told |= {"id": str(number), "trace_id": "t", "project_id": "p", "type": kind.upper()}
        start = datetime.fromtimestamp(call["start_ns"] / SECOND_NS, UTC)
        rows.append(ObservationV2(**told, start_time=start, usage_details=usage))
    client.flush()
    write_otlp(folder / "langfuse-spans.jsonl", kept.get_finished_spans())
    page = ObservationsV2Response(data=rows, meta={"cursor": None})
    (folder / "langfuse.json").write_text(page.json())


if __name__ == "__main__":
    place, given = Path(sys.argv[1]), json.load(sys.stdin)
    write_spans(place, given)
    write_langfuse(place, given)
