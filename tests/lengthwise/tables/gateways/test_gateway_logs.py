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
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pandas as pd
import pytest

from lengthwise.child_processes import free_port, started
from lengthwise.errors import DataError
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables.gateways import fake_upstream as upstream

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PROGRAMS = HERE.parents[3] / ".venv-gateways/bin"
KEY = "sk-1d2c9a44c1f04e0d93b6d1f7a3be5c60"
NEEDS = ("prompt", "prompt_tokens", "output_tokens", "arrival_s")
SKIP = TraceOptions(on_bad_rows="skip")
EVERY_PLANE = "naïve 数 \U0001f600 \U00020000 \u2028\x85 \\u0041"
LONG = "a long prompt " * 500
KEPT = ("plain", "streamed", "think first", EVERY_PLANE, "cached")
"""Prompts of answered calls, in order."""
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("streamed", {"stream": True}),
    ("think first", {"stream": True, "stream_options": {"include_usage": True}}),
    (EVERY_PLANE, {}),
    ("cached", {"cache": {"use-cache": True}}),
    ("cached", {"cache": {"use-cache": True}}),
    ("fail", {}),
    ("two answers", {"n": 2}),
    ("short", {"max_tokens": 5}),
    ("short stream", {"max_tokens": 5, "stream": True}),
    ("secret", {}),
    (LONG, {}),
]
LEFT_OUT = {
    "cache_hit is 'True'": 1,
    "status is 'failure'": 1,
    "several answers in one count": 1,
    "censored: finish_reason is length": 2,
    "call_type is 'aembedding'": 1,
    "LiteLLM redacted the prompt": 1,
}


def post(url: str, body: dict[str, Any], **headers: str) -> int:
    """Send a request past any proxy of the environment; return the status of the whole answer."""
    headers |= {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    try:
        opener = build_opener(ProxyHandler({}))
        with opener.open(Request(url, json.dumps(body).encode(), headers), timeout=120) as answer:
            answer.read()
            return int(answer.status)
    except HTTPError as error:
        return error.code


@pytest.fixture(scope="module")
def litellm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A folder with standard.jsonl and spend.jsonl of LiteLLM's proxy; sent-between times."""
    folder, port = tmp_path_factory.mktemp("litellm"), free_port()
    shutil.copy(HERE / "litellm_sink.py", folder)
    with upstream.fake_upstream() as (address, logged):
        server = {"model": "openai/vendor-m", "api_base": f"{address}/v1", "api_key": "none"}
        config = {
            "model_list": [{"model_name": "m", "litellm_params": server | {"max_retries": 0}}],
            "litellm_settings": {
                "callbacks": ["litellm_sink.sink"],
                "cache": True,
                "cache_params": {"type": "local", "mode": "default_off"},
                "num_retries": 0,
            },
            "general_settings": {"store_prompts_in_spend_logs": True},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        keys = {"LITELLM_MASTER_KEY": KEY, "LENGTHWISE_SINK": f"{address}/sink"}
        fixed = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1", "no_proxy": "*"}
        environment = [f"{name}={value}" for name, value in (keys | fixed).items()]
        program = [str(PROGRAMS / "litellm"), "--config", str(folder / "config.yaml")]
        command = ["env", "-u", "PYTHONPATH", *environment, *program]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        ready = "Uvicorn running on"
        with started(command, ready=ready, timeout_s=300, stderr=subprocess.STDOUT):
            times = []
            for prompt, more in CALLS:
                redact = (
                    {"x-litellm-enable-message-redaction": "true"} if prompt == "secret" else {}
                )
                body = {"model": "m", "messages": [{"role": "user", "content": prompt}], **more}
                before_s = time.time()
                status = post(f"http://127.0.0.1:{port}/v1/chat/completions", body, **redact)
                times.append((before_s, time.time()))
                assert (status == 200) == (prompt != "fail")
                keep(folder, logged.get(timeout=120))
            body = {"model": "m", "input": "embedded"}
            assert post(f"http://127.0.0.1:{port}/v1/embeddings", body) == 200
            keep(folder, logged.get(timeout=120))
    return folder, times


def keep(folder: Path, rows: dict[str, str]) -> None:
    for name, row in rows.items():
        with (folder / f"{name}.jsonl").open("a") as file:
            file.write(row + "\n")


@pytest.mark.parametrize(
    ("name", "kept", "more"),
    [
        ("standard", (*KEPT, LONG), {}),
        # The table of spends holds the start and the end of a long text.
        ("spend", KEPT, {"censored: LiteLLM cut the prompt": 1}),
    ],
)
def test_litellm_logs_hold_the_calls_that_met_an_engine(
    litellm: tuple[Path, list[Any]], name: str, kept: tuple[str, ...], more: dict[str, int]
) -> None:
    folder, times = litellm
    log = read_log(folder / f"{name}.jsonl", SKIP, needs=NEEDS)
    assert (log.format, log.num_rows) == ("LiteLLM", len(CALLS) + 1)
    assert log.left_out == LEFT_OUT | more
    frame = log.frame
    assert list(frame.prompt) == list(kept)
    assert list(frame.prompt_tokens) == list(map(upstream.prompt_tokens, kept))
    assert list(frame.output_tokens) == list(map(upstream.output_tokens, kept))
    reasoning = [upstream.REASONING * prompt.startswith("think") for prompt in kept]
    assert list(frame.reasoning_tokens) == reasoning
    assert set(frame.model) == {"m"}
    sent = dict(zip([prompt for prompt, _ in reversed(CALLS)], reversed(times), strict=True))
    first = sent[kept[0]]
    for prompt, arrival_s in zip(frame.prompt, frame.arrival_s, strict=True):
        before_s, after_s = sent[prompt]
        assert before_s - first[1] <= arrival_s <= after_s - first[0]


def test_redacted_prompts_are_refused_by_name(litellm: tuple[Path, list[Any]]) -> None:
    with pytest.raises(DataError, match=r"row 10: .*turn_off_message_logging.*--on-bad-rows skip"):
        read_log(litellm[0] / "standard.jsonl", needs=NEEDS)


SECOND_NS = 1_000_000_000
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
def spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with spans of the SDKs."""
    folder = tmp_path_factory.mktemp("spans")
    calls = [
        {"input": 20 + n, "output": 50 + n, "reasoning": 0, "finish": "stop", "style": "newest"}
        | {"start_ns": START_NS + int(SECOND_NS * call.get("at_s", 0))}
        | call
        for n, call in enumerate(SPANS)
    ]
    command = [str(PROGRAMS / "python"), str(HERE / "span_writer.py"), str(folder)]
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    given = json.dumps(calls)
    subprocess.run(command, input=given, text=True, check=True, timeout=300, env=environment)
    return folder


def of_calls(numbers: list[int]) -> pd.DataFrame:
    """Requests of these calls of SPANS."""
    return pd.DataFrame(
        {
            "prompt": [SPANS[n]["prompt"] for n in numbers],
            "output_tokens": [50 + n for n in numbers],
            "prompt_tokens": [20 + n for n in numbers],
            "reasoning_tokens": [SPANS[n].get("reasoning", 0) for n in numbers],
            "arrival_s": [float(SPANS[n].get("at_s", 0)) for n in numbers],
            "model": "m",
        }
    )


@pytest.mark.parametrize("name", ["console.json", "otlp.jsonl"])
def test_spans_of_opentelemetry_are_the_calls_of_models_and_no_others(
    spans: Path, name: str
) -> None:
    log = read_log(spans / name, needs=NEEDS)
    assert (log.format, log.num_rows) == ("OpenTelemetry", len(SPANS))
    right = of_calls([1, 2, 3, 0])
    assert log.left_out.pop("censored: finish_reason is length") == 2  # type: ignore[attr-defined]
    failed = {"ERROR", "STATUS_CODE_ERROR"}
    reasons = {
        ("failed" if any(map(why.count, failed)) else why): n for why, n in log.left_out.items()
    }
    assert reasons == {
        "gen_ai.operation.name is 'execute_tool'": 1,
        "gen_ai.operation.name is 'invoke_agent'": 1,
        "llm.request.type is 'embedding'": 1,
        "a span without a call of a model": 1,
        "failed": 1,
        "several answers in one count": 1,
    }
    frame = log.frame.reset_index(drop=True)[list(right)]
    pd.testing.assert_frame_equal(frame, right, check_dtype=False, rtol=0, atol=1e-6)


def test_generations_of_langfuse_are_the_same_in_its_spans_and_in_its_api(spans: Path) -> None:
    newest = [n for n, call in enumerate(SPANS) if call.get("style", "newest") == "newest"]
    ok = [n for n in newest if not SPANS[n].get("fails")]
    api = read_log(spans / "langfuse.json", needs=NEEDS)
    assert api.left_out == {"type is 'TOOL'": len(SPANS) - len(newest), "level is 'ERROR'": 1}
    right = of_calls(sorted(ok, key=lambda n: (SPANS[n].get("at_s", 0), n)))
    frame = api.frame.reset_index(drop=True)[list(right)]
    pd.testing.assert_frame_equal(frame, right, check_dtype=False, rtol=0, atol=1e-6)
    exported = read_log(spans / "langfuse-spans.jsonl", needs=NEEDS)
    assert exported.left_out == {
        "langfuse.observation.type is 'tool'": len(SPANS) - len(newest),
        "langfuse.observation.level is 'ERROR'": 1,
    }
    names = ["prompt", "output_tokens", "prompt_tokens", "model"]  # its clock is the machine's
    both = (exported.frame.reset_index(drop=True)[names], of_calls(ok)[names])
    pd.testing.assert_frame_equal(*both, check_dtype=False)
