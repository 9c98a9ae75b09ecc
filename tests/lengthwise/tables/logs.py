"""Small invented logs of each format that is read; prompts and numbers are nobody's."""

import json
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def chat(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A request and the response to it, as a gateway logs them."""
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": prompt}]
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
    response = {"id": "chatcmpl-1", "object": "chat.completion", "model": "m-1", "usage": usage}
    return {"request": {"model": "m", "messages": messages}, "response": response} | more


OPENAI: Rows = [
    chat("one", 10, timestamp="2026-03-01T10:00:00Z"),
    chat("two", 20, timestamp="2026-03-01T10:00:02.5Z"),
    {  # /completions, whose answer came in the same second
        "request": {"model": "m", "prompt": ["three"]},
        "response": {"usage": {"completion_tokens": 30, "prompt_tokens": 4}, "choices": []},
        "timestamp": "2026-03-01T10:00:02.5Z",
    },
    {  # /responses
        "request": {"model": "m", "input": [{"role": "user", "content": "four"}]},
        "response": {
            "usage": {
                "input_tokens": 5,
                "output_tokens": 40,
                "output_tokens_details": {"reasoning_tokens": 25},
            }
        },
        "timestamp": "2026-03-01T10:00:05Z",
    },
    {
        "request": {"model": "m", "messages": [{"role": "user", "content": "refused"}]},
        "response": {"error": {"message": "too long", "code": 400}},
        "timestamp": "2026-03-01T10:00:06Z",
    },
]
BATCH: Rows = [
    {
        "custom_id": f"r{n}",
        "body": {"model": "m", "messages": [{"role": "user", "content": f"prompt {n}"}]},
        "response": {"status_code": 200, "body": {"usage": {"completion_tokens": n + 1}}},
    }
    for n in range(3)
]
LITELLM: Rows = [
    {  # a row of LiteLLM_SpendLogs with store_prompts_in_spend_logs
        "request_id": "a",
        "call_type": "acompletion",
        "model": "vendor/m-2026",
        "model_group": "m",
        "status": "success",
        "startTime": "2026-03-01T10:00:00.500000Z",
        "prompt_tokens": 7,
        "completion_tokens": 12,
        "messages": {},
        "proxy_server_request": json.dumps({"messages": [{"role": "user", "content": "one"}]}),
    },
    {  # the standard logging payload
        "id": "b",
        "call_type": "acompletion",
        "model": "m",
        "status": "success",
        "startTime": 1772359201.5,
        "prompt_tokens": 8,
        "completion_tokens": 30,
        "messages": [{"role": "user", "content": "two"}],
        "response": {"usage": {"completion_tokens_details": {"reasoning_tokens": 20}}},
    },
    {
        "id": "c",
        "call_type": "acompletion",
        "model": "m",
        "status": "failure",
        "startTime": 1772359202.5,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "messages": [{"role": "user", "content": "refused"}],
    },
]
LANGFUSE: Rows = [
    {  # the API and the export from the UI
        "id": "o1",
        "traceId": "t1",
        "type": "SPAN",
        "startTime": "2026-03-01T10:00:00.000Z",
        "input": "a tool",
    },
    {
        "id": "o2",
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": "2026-03-01T10:00:03.000Z",
        "model": "m",
        "input": {"messages": [{"role": "user", "content": "two"}]},
        "usageDetails": {"input": 5, "output": 6, "output_reasoning_tokens": 24, "total": 35},
    },
    {  # the export to blob storage, whose texts are JSON inside of JSON
        "id": "o3",
        "trace_id": "t2",
        "type": "GENERATION",
        "start_time": "2026-03-01 10:00:01.250000",
        "provided_model_name": "m",
        "input": '[{"role": "user", "content": "one"}]',
        "usage_details": {"input": 4, "output": 11},
    },
]
HERE = Path(__file__).parent
VLLM_OLD = (HERE / "vllm-old.txt").read_text()
VLLM_NEW = (HERE / "vllm-new.txt").read_text()


def write_lines(path: Path, rows: Rows) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
