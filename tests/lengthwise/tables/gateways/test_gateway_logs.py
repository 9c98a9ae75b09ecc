"""Logs that gateways and SDKs write themselves hold the requests that were sent to them.

LiteLLM, Langfuse and OpenTelemetry run in .venv-gateways, which `.ci/setup` makes.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest

from lengthwise.child_processes import free_port, started
from lengthwise.errors import DataError
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables.gateways.fake_upstream import Rows, counts_of, fake_upstream

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PROGRAMS = HERE.parents[3] / ".venv-gateways/bin"
ENVIRONMENT = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
KEY = "sk-1d2c9a44c1f04e0d93b6d1f7a3be5c60"
NEEDS = ("prompt", "prompt_tokens", "output_tokens", "arrival_s")
Sent = list[tuple[float, float]]
EVERY_PLANE = "naïve 数 \U0001f600 \U00020000 \u2028\x85 \\u0041"
LONG = "a long prompt " * 500
KEPT = ("plain", "streamed", "think first", EVERY_PLANE, "cached")
"""Prompts of answered calls, in order."""
CACHED = {"cache": {"use-cache": True}}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("streamed", {"stream": True}),
    ("think first", {"stream": True, "stream_options": {"include_usage": True}}),
    (EVERY_PLANE, {}),
    ("cached", CACHED),
    ("cached", CACHED),
    ("fail", {}),
    ("two answers", {"n": 2}),
    ("short", {"max_tokens": 5}),
    ("short stream", {"max_tokens": 5, "stream": True}),
    ("secret", {}),
    ("left", {"stream": True}),
    (LONG, {}),
]
LEFT_OUT = {
    "cache_hit is 'True'": 1,
    "status is 'failure'": 1,
    "several answers in one count": 1,
    "censored: finish_reason is length": 2,
    "censored: its stream broke off": 1,
    "call_type is 'aembedding'": 1,
    "LiteLLM redacted the prompt": 1,
}


def send_all(url: str, logged: Rows, folder: Path) -> Sent:
    """Send CALLS and an embedding one by one, and keep the rows of each; return the times."""
    times = []
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        for prompt, more in [*CALLS, ("", {})]:
            redact = {"x-litellm-enable-message-redaction": "true"} if prompt == "secret" else {}
            body = {"messages": [{"role": "user", "content": prompt}], **more}
            place, given = ("chat/completions", body) if prompt else ("embeddings", {"input": "a"})
            headers = {"Authorization": f"Bearer {KEY}", **redact}
            before_s = time.time()
            given |= {"model": "m"}
            with client.stream("POST", f"/v1/{place}", json=given, headers=headers) as answer:
                next(answer.iter_raw()) if prompt == "left" else answer.read()
            times.append((before_s, time.time()))
            assert (answer.status_code == 200) == (prompt != "fail"), answer.text
            for name, row in logged.get(timeout=120).items():
                with (folder / f"{name}.jsonl").open("a") as file:
                    file.write(row + "\n")
    return times


@pytest.fixture(scope="module")
def litellm(tmp_path_factory):
    """A folder with standard.jsonl and spend.jsonl of LiteLLM's proxy, and the times of sending."""
    folder, port = tmp_path_factory.mktemp("litellm"), free_port()
    shutil.copy(HERE / "litellm_sink.py", folder)
    with fake_upstream() as (address, logged):
        server = {"model": "openai/m", "api_base": f"{address}/v1", "api_key": "-"}
        cache = {"cache": True, "cache_params": {"type": "local", "mode": "default_off"}}
        config = {
            "model_list": [{"model_name": "m", "litellm_params": server | {"max_retries": 0}}],
            "litellm_settings": {"callbacks": ["litellm_sink.sink"], "num_retries": 0} | cache,
            "general_settings": {"store_prompts_in_spend_logs": True},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        settings = {"LITELLM_MASTER_KEY": KEY, "LENGTHWISE_SINK": f"{address}/sink"}
        settings |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "no_proxy": "127.0.0.1"}
        command = ["env", "-u", "PYTHONPATH", *(f"{name}={x}" for name, x in settings.items())]
        command += [str(PROGRAMS / "litellm"), "--config", str(folder / "config.yaml")]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        with started(command, ready="Uvicorn running on", timeout_s=300, stderr=subprocess.STDOUT):
            return folder, send_all(f"http://127.0.0.1:{port}", logged, folder)


@pytest.mark.parametrize(
    ("name", "kept", "more"),
    [
        ("standard", (*KEPT, LONG), {}),
        # The table of spends holds the start and the end of a long text.
        ("spend", KEPT, {"censored: LiteLLM cut the prompt": 1}),
    ],
)
def test_litellm_logs_hold_the_calls_that_met_an_engine(litellm, name, kept, more):
    folder, times = litellm
    log = read_log(folder / f"{name}.jsonl", TraceOptions(on_bad_rows="skip"), needs=NEEDS)
    assert (log.format, log.num_rows) == ("LiteLLM", len(CALLS) + 1)
    assert log.left_out == LEFT_OUT | more
    counts = log.frame[["prompt_tokens", "output_tokens", "reasoning_tokens"]]
    assert list(log.frame.prompt) == list(kept)
    assert list(counts.itertuples(index=False, name=None)) == list(map(counts_of, kept))
    assert set(log.frame.model) == {"m"}
    sent = dict(zip([prompt for prompt, _ in reversed(CALLS)], times[-2::-1], strict=True))
    sent["cached"], first = times[4], times[0]
    for prompt, arrival_s in zip(log.frame.prompt, log.frame.arrival_s, strict=True):
        before_s, after_s = sent[prompt]
        assert before_s - first[1] <= arrival_s <= after_s - first[0]


def test_redacted_prompts_are_refused_by_name(litellm):
    with pytest.raises(DataError, match=r"row 10: .*turn_off_message_logging.*--on-bad-rows skip"):
        read_log(litellm[0] / "standard.jsonl", needs=NEEDS)


START_NS = 1_772_359_200_123_456_000
SPANS: list[dict[str, Any]] = [
    {"prompt": "late", "at_s": 7.5},
    {"prompt": "think", "reasoning": 9},
    {"prompt": EVERY_PLANE, "at_s": 1.25},
    {"prompt": "old names", "style": "oldest", "at_s": 2},
    {"prompt": "a tool", "operation": "execute_tool"},
    {"prompt": "an agent", "operation": "invoke_agent"},
    {"prompt": "vectors", "operation": "embedding", "style": "oldest"},
    {"prompt": "a client", "style": "http"},
    {"prompt": "broken", "fails": True},
    {"prompt": "two", "n": 2},
    {"prompt": "cut", "finish": "length"},
    {"prompt": "cut too", "finish": "length", "style": "oldest"},
]


@pytest.fixture(scope="module")
def spans(tmp_path_factory):
    """A folder with spans of the SDKs."""
    folder, plain = tmp_path_factory.mktemp("spans"), {"reasoning": 0, "finish": "stop"}
    for n, call in enumerate(SPANS):
        call |= {"input": 20 + n, "output": 50 + n, "at_s": call.get("at_s", 0)}
        call |= {"start_ns": START_NS + int(call["at_s"] * 1e9), "style": "newest"} | plain | call
    command = [str(PROGRAMS / "python"), str(HERE / "span_writer.py"), str(folder)]
    given = json.dumps(SPANS)
    subprocess.run(command, input=given, text=True, check=True, timeout=300, env=ENVIRONMENT)
    return folder


def assert_calls(frame: pd.DataFrame, numbers: list[int], *without: str) -> None:
    """Compare requests with these calls of SPANS."""
    names = {"output": "output_tokens", "input": "prompt_tokens", "reasoning": "reasoning_tokens"}
    right = pd.DataFrame([SPANS[n] for n in numbers]).rename(columns={"at_s": "arrival_s", **names})
    columns = ["prompt", "arrival_s", *names.values()]
    columns = [name for name in columns if name not in without]
    both = frame.reset_index(drop=True)[columns], right[columns]
    pd.testing.assert_frame_equal(*both, check_dtype=False, rtol=0, atol=1e-6)
    assert set(frame.model) == {"m"}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("console.json", "status.status_code is 'ERROR'"),
        ("otlp.jsonl", "status.code is 'STATUS_CODE_ERROR'"),
    ],
)
def test_only_calls_of_models_are_read_from_opentelemetry_spans(spans, name, error):
    log = read_log(spans / name, needs=NEEDS)
    assert (log.format, log.num_rows) == ("OpenTelemetry", len(SPANS))
    assert_calls(log.frame, [1, 2, 3, 0])
    assert log.left_out == {
        "gen_ai.operation.name is 'execute_tool'": 1,
        "gen_ai.operation.name is 'invoke_agent'": 1,
        "llm.request.type is 'embedding'": 1,
        "a span without a call of a model": 1,
        error: 1,
        "several answers in one count": 1,
        "censored: finish_reason is length": 2,
    }


def test_langfuse_generations_are_the_same_in_spans_and_api(spans):
    newest = [n for n, call in enumerate(SPANS) if call["style"] == "newest"]
    ok = [n for n in newest if not SPANS[n].get("fails")]
    left = len(SPANS) - len(newest)
    log = read_log(spans / "langfuse.json", needs=NEEDS)
    assert log.left_out == {"type is 'TOOL'": left, "level is 'ERROR'": 1}
    assert_calls(log.frame, sorted(ok, key=lambda n: (SPANS[n]["at_s"], n)))
    log = read_log(spans / "langfuse-spans.jsonl", needs=NEEDS)
    failed = "status.code is 'STATUS_CODE_ERROR'"
    assert log.left_out == {"langfuse.observation.type is 'tool'": left, failed: 1}
    # The SDK reads the clock of the machine.
    assert_calls(log.frame, ok, "arrival_s", "reasoning_tokens")
