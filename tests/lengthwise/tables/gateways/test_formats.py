"""Each format is recognised, and its paths lead to our columns."""

import json
from pathlib import Path
from typing import Any

import pytest

from lengthwise.tables.columns import Log
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables import logs


def read(folder: Path, rows: logs.Rows, **options: Any) -> Log:
    return read_log(
        logs.write_lines(folder / "log.jsonl", rows),
        TraceOptions(**options),
        needs=("output_tokens", "arrival_s"),
        wants=("prompt",),
        is_lenient=True,
    )


def columns(log: Log, *names: str) -> list[tuple[Any, ...]]:
    return list(log.frame[list(names)].itertuples(index=False, name=None))


@pytest.mark.parametrize(
    "parts", [("request_body", "response_body"), ("reqPayload", "respPayload")]
)
def test_the_parts_of_a_pair_may_have_other_names_and_be_text(tmp_path, parts):
    request, response = logs.chat("one", 10).values()
    row = {parts[0]: json.dumps(request), parts[1]: json.dumps(response)}
    assert columns(read(tmp_path, [row]), "prompt", "output_tokens") == [("one", 10)]
    whole = request | response
    assert columns(read(tmp_path, [whole, whole]), "prompt", "output_tokens") == [("one", 10)]
    assert columns(read(tmp_path, logs.BATCH), "output_tokens") == [(1,), (2,), (3,)]


TIME = "2026-03-01T10:00:00.250Z"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
ANSWER = {
    "choices": [{"finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 30, "total_tokens": 39},
}
HELICONE = {"request_created_at": TIME, "response_status": 200, "request_id": "1", "model": "m"}
HELICONE |= {"request_body": CHAT, "prompt_tokens": 9, "completion_tokens": 30}
STREAMED = [{"object": "chat.completion.chunk"} | ANSWER | {"usage": None}]
STREAMED += [STREAMED[0] | {"choices": [], "usage": ANSWER["usage"]}]
PORTKEY = {"created_at": TIME, "request.body": CHAT, "ai_model": "m", "is_success": 1}
PORTKEY |= {"req_units": 9, "res_units": 30, "cache_status": "MISS"}
PORTKEY_NEW = {"id": "1", "created_at": TIME, "request": json.dumps(CHAT), "ai_provider": "openai"}
PORTKEY_NEW |= {"ai_model": "m", "request_tokens": 9, "response_tokens": 30, "status_code": 200}
PAYLOAD = {"call_type": "acompletion", "startTime": TIME, "completion_tokens": 30}
PAYLOAD |= {"prompt_tokens": 9, "model": "m", "messages": CHAT["messages"], "status": "success"}
PAYLOAD |= {"cache_hit": False}
CACHED = {"usage": {"input_tokens": 4, "cache_read_input_tokens": 5, "output_tokens": 30}}
IN_TOTAL = {"usage": {"prompt_tokens": 9, "completion_tokens": 10, "total_tokens": 39}}
BEDROCK = {"timestamp": TIME, "modelId": "m", "schemaType": "ModelInvocationLog"}
INVOKED = {"inputBodyJson": CHAT, "inputTokenCount": 9}
CONVERSE = {"messages": [{"role": "user", "content": [{"text": "a"}]}]}
CONVERSED = {"stopReason": "end_turn", "usage": {"inputTokens": 9, "outputTokens": 30}}
GEMINI = {"timestamp": TIME, "request": {"contents": [{"role": "user", "parts": [{"text": "a"}]}]}}
PART = {"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11}}
COUNTS = {"promptTokenCount": 5, "toolUsePromptTokenCount": 4, "candidatesTokenCount": 10}
COUNTS |= {"thoughtsTokenCount": 20, "totalTokenCount": 39}
END = {"candidates": [{"finishReason": "STOP"}], "modelVersion": "m", "usageMetadata": COUNTS}
SPAN = {"start_time": TIME, "context": {"span_id": "1"}}
USED = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 30}
ASKED = {"name": "gen_ai.user.message", "attributes": {"content": "a"}}
LLM = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "a"}
LLM |= {"llm.token_count.prompt": 9, "llm.token_count.completion": 30}
UI = {"traceId": "t", "startTime": TIME, "input": "a", "model": "m", "id": "1"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Helicone", HELICONE),
    ("Helicone", HELICONE | {"completion_tokens": None, "response_body": ANSWER}),
    ("Helicone", HELICONE | {"completion_tokens": 0, "response_body": STREAMED}),
    ("Helicone: an answer from Helicone's cache", HELICONE | {"cache_reference_id": "4c1e-0"}),
    ("Helicone: response_status is '429'", HELICONE | {"response_status": 429}),
    ("Portkey", PORTKEY),
    ("Portkey", PORTKEY | {"response.body": ANSWER, "res_units": 0}),
    ("Portkey: cache_status is 'SEMANTIC HIT'", PORTKEY | {"cache_status": "SEMANTIC HIT"}),
    ("Portkey: is_success is '0'", PORTKEY | {"is_success": 0}),
    ("Portkey", PORTKEY_NEW),
    ("Portkey", PORTKEY_NEW | {"response": {"body": STREAMED}, "response_tokens": 0}),
    ("Portkey", PORTKEY_NEW | {"response_tokens": 20, "total_tokens": 39}),
    ("Portkey: status_code is '500'", PORTKEY_NEW | {"status_code": 500}),
    ("LiteLLM", {"standard_logging_object": PAYLOAD}),
    ("LiteLLM", {"model": "m", "messages": None, "standard_logging_object": json.dumps(PAYLOAD)}),
    ("LiteLLM", {"kwargs": {"standard_logging_object": PAYLOAD}, "start_time": TIME}),
    ("LiteLLM", PAYLOAD | {"messages": None, "proxy_server_request": CHAT}),
    ("LiteLLM: status is 'failure'", {"standard_logging_object": PAYLOAD | {"status": "failure"}}),
    ("OpenAI", {"timestamp": TIME, "request": CHAT, "response": CACHED}),
    ("OpenAI", {"timestamp": TIME, "request": CHAT, "response": IN_TOTAL}),
    ("OpenAI", BEDROCK | {"input": INVOKED, "output": {"outputTokenCount": 30}}),
    (
        "OpenAI",
        BEDROCK | {"input": {"inputBodyJson": CONVERSE}, "output": {"outputBodyJson": CONVERSED}},
    ),
    ("OpenAI", GEMINI | {"response": END}),
    ("OpenAI", GEMINI | {"response": [PART, END]}),
    ("OpenAI: censored: its stream broke off", GEMINI | {"response": [PART, PART]}),
    ("OpenTelemetry", SPAN | {"attributes": USED, "events": [ASKED]}),
    ("OpenTelemetry", SPAN | {"attributes": LLM}),
    (
        "OpenTelemetry",
        SPAN
        | {
            "events": [ASKED],
            "attributes": USED
            | {"gen_ai.usage.input_tokens": 4, "gen_ai.usage.cache_read.input_tokens": 5}
            | {"gen_ai.usage.total_tokens": 39},
        },
    ),
    ("OpenTelemetry: a span without a call of a model", SPAN | {"attributes": {"http.url": "x"}}),
    ("OpenTelemetry: a span without a call of a model", SPAN | {"attributes": [{"key": 5}, 1]}),
    ("Langfuse", UI | {"usageDetails": '{"input": 9, "output": 25, "output_x": 5}'}),
    ("Langfuse", UI | {"inputUsage": "9", "outputUsage": "30", "totalUsage": "39"}),
]


@pytest.mark.parametrize(("right", "row"), CASES)
def test_exports_of_gateways_hold_the_same_call(tmp_path, right, row):
    name, _, reason = right.partition(": ")
    # One more call, as a log without any request is refused.
    other = logs.write_lines(tmp_path / "other.jsonl", [logs.chat("b", 1, timestamp=TIME)])
    path = logs.write_lines(tmp_path / "log.jsonl", [row])
    log = read_log([path, other], TraceOptions(), needs=("prompt", "output_tokens", "arrival_s"))
    assert name in log.format
    assert log.left_out == ({reason: 1} if reason else {})
    got = columns(log, "prompt", "prompt_tokens", "output_tokens", "arrival_s")
    assert got == [("a", 9, 30, 0), ("b", 9, 1, 0)][bool(reason) :]


def test_traces_have_formats_of_their_own(tmp_path):
    mooncake = {"timestamp": 3000, "input_length": 6, "output_length": 5, "hash_ids": [1]}
    log = read(tmp_path, [mooncake | {"timestamp": 0}, mooncake])
    assert (log.format, log.frame.arrival_s.tolist()) == ("Mooncake", [0, 3])


def test_answers_without_counts_are_counted_by_a_tokenizer(tmp_path, tokenizer):
    turns = [
        {"from": "gpt", "value": "before"},
        {"from": "human", "value": "now ?"},
        {"from": "gpt", "value": "this is it"},
    ]
    log = read(tmp_path, [{"id": "a", "conversations": turns}], tokenizer=str(tokenizer))
    assert columns(log, "prompt", "prompt_tokens", "output_tokens") == [("now ?", 2, 3)]
    assert str(tokenizer) in log.sources["output_tokens"]
