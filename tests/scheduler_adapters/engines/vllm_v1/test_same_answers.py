"""Clients of vLLM's OpenAI server get the same answers from `serve-vllm`, request by request."""

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import groupby
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lengthwise.child_processes import end_processes, free_port
from scheduler_adapters.engines.random_model import VOCABULARY, make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import ENVIRONMENT
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from tests.scheduler_adapters.commands.vllm_server import wait_until_healthy
from tests.scheduler_adapters.engines.chat_templates import TEMPLATES, byte_tokenizer

pytestmark = pytest.mark.vllm

KEY = "sk-chat"
CLASSES = {
    "classes": {"chat": {"tbt_s": 0.05}, "batch": {}},
    "api_keys": {KEY: "chat"},
    "default": "batch",
}
OPTIONS = (
    "--served-model-name=tiny", "--dtype=bfloat16", "--block-size=32", "--max-model-len=1024",
    "--max-num-seqs=8", "--max-num-batched-tokens=256", f"--kv-cache-memory-bytes={32 << 20}",
    "--enforce-eager", f"--api-key={KEY}", "--enable-request-id-headers",
    "--enable-auto-tool-choice", "--tool-call-parser=hermes",
    "--distributed-executor-backend=uni",  # a worker of its own would spin beside the engine
)  # fmt: skip


@pytest.fixture(scope="module")
def servers(tmp_path_factory, tiny_bundle):
    """The ports of vLLM's own server and of ours."""
    folder = tmp_path_factory.mktemp("same")
    model = make_tiny_model(folder / "model")
    byte_tokenizer(TEMPLATES["phi"], VOCABULARY).save_pretrained(model)
    (folder / "classes.json").write_text(json.dumps(CLASSES))
    scoring = ScoringServer(RankerModel.load(tiny_bundle), ServerConfig(address="127.0.0.1:0"))
    scoring.start()
    ports, module = (free_port(), free_port()), [sys.executable, "-m"]
    stock = [*module, "vllm.entrypoints.openai.api_server", f"--model={model}", "--host=127.0.0.1"]
    ours = [*module, "scheduler_adapters", "serve-vllm", str(model), "--policy=pars"]
    ours += [f"--scorer={scoring.target}", "--deadline-s=20", "--target-model=tiny-llm"]
    ours += ["--client-hints=true", f"--classes={folder / 'classes.json'}", f"--port={ports[1]}"]
    commands = {ports[0]: [*stock, f"--port={ports[0]}", *OPTIONS]}
    commands[ports[1]] = [*ours, "--", *OPTIONS]
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for port, command in commands.items():
            with (folder / f"{port}.log").open("w") as log:
                started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        for port, server in zip(ports, started, strict=True):
            wait_until_healthy(f"http://127.0.0.1:{port}", server, folder / f"{port}.log")
        yield ports
    finally:
        end_processes(started, 300)
        scoring.stop()


@dataclass
class Case:
    """One request."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str | None]
    body: Any


COMPARED_HEADERS = ("content-type", "allow", "x-request-id", "www-authenticate", "location")
NAMES_OF_A_RUN = {
    "id", "created", "created_at", "completed_at", "request_id", "item_id", "call_id",
    "sequence_number", "system_fingerprint",
}  # fmt: skip
JOINED = {"text", "content", "arguments", "delta", "reasoning"}


def send(port: int, case: Case) -> Answer:
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    headers = {name: value for name, value in (headers | dict(case.headers)).items() if value}
    try:
        connection.request(case.method, case.path, case.body, headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    named = {name: response.headers.get(name) for name in COMPARED_HEADERS}
    if "X-Request-Id" not in case.headers:
        named["x-request-id"] = "of the server" if named["x-request-id"] else None
    if named["location"]:
        named["location"] = named["location"].replace(str(port), "PORT")
    if (named["content-type"] or "").startswith("text/event-stream"):
        return Answer(response.status, named, events_of(content.decode()))
    try:
        return Answer(response.status, named, without_names(json.loads(content)))
    except ValueError:
        return Answer(response.status, named, content)


def without_names(value: Any) -> Any:
    """`value` without what differs from run to run."""
    if isinstance(value, dict):
        return {key: without_names(one) for key, one in value.items() if key not in NAMES_OF_A_RUN}
    return [without_names(one) for one in value] if isinstance(value, list) else value


def events_of(stream: str) -> list[Any]:
    """The types of a stream's events in their order, its end, and its data joined per choice."""
    lines = [line.partition(": ") for line in stream.splitlines() if line]
    types = [name for name, _ in groupby(text for kind, _, text in lines if kind == "event")]
    data = [text for kind, _, text in lines if kind == "data"]
    joined: dict[Any, Any] = {}
    for text in data:
        if text != "[DONE]":
            event = without_names(json.loads(text))
            choices = event.get("choices") or [{}]
            place = (event.get("type"), choices[0].get("index"))
            joined[place] = join(joined.get(place), event)
    assert {kind for kind, _, _ in lines} <= {"event", "data"}
    return [types, data[-1] == "[DONE]", sorted(joined.items(), key=str)]


def join(before: Any, after: Any, key: str = "") -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        return before | {name: join(before.get(name), one, name) for name, one in after.items()}
    if isinstance(before, list) and isinstance(after, list):
        if key in ("choices", "tool_calls") and len(before) == len(after) == 1:
            return [join(before[0], after[0])]
        return before + after
    if key in JOINED and isinstance(before, str) and isinstance(after, str):
        return before + after
    return before if after is None else after


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["C", "F"]}},
            "required": ["unit"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
DRAWN = {"n": 2, "temperature": 1, "seed": 1}
LONG = "all of this is too long " * 60
MISSING = object()
"""As a value: the field is left out."""

ANY_PATH: dict[str, list[Any]] = {
    "vllm_xargs": [{"lengthwise_score": 3}, [1]],
    "model": ["nobody"],
    "stream": [True],
    "priority": [1],
}
"""For every path; those of completions have more values of each."""
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hello", "max_tokens": 5, "temperature": 0}
COMPLETIONS: dict[str, list[Any]] = {
    "vllm_xargs": [
        {}, None, {"a": "b"}, {"lengthwise_score": 3}, {"lengthwise_score": None}, [1], "x",
        {"lengthwise_score": "long"}, {"lengthwise_score": [1, 2]}, {"lengthwise_score": {"a": 1}},
        {"a": {"b": 1}}, {"lengthwise_class": "vip", "lengthwise_tbt_s": -1},
    ],
    "model": ["nobody", "", None, 5, MISSING],
    "temperature": [3, "hot", 1e400],
    "stream": ["maybe", True],
    "no_such_field": [1],
    "priority": [0, 1, 1 << 70, "x"],
    "request_id": ["mine", 5],
    "prompt": [
        "h\u00e9 \u6c49\u5b57 \U0001f642", "\ud800", ["one", "two"], [5, 6, 7], [[5, 6], [7]], "",
        [], [""], [[]], ["a", [1]], None, 5, {"a": 1}, MISSING, [99_999], [-1], True, [1.5], LONG,
        [5] * 1100, ["x"] * 20,
    ],
    "max_tokens": [0, None, "five"],
    "n": [0, 2],
    "echo": [True],
    "response_format": [{"type": "json_schema"}, JSON_SCHEMA],
    "structured_outputs": [{"choice": ["yes", "no"]}, {"regex": "["}],
    "min_tokens": [3, 9],
    "return_token_ids": [True],
    "kv_transfer_params": [{}, {"a": 1}],
    "prompt_embeds": ["abc"],
}  # fmt: skip
COMPLETION_MIXES: list[dict[str, Any]] = [
    DRAWN,
    DRAWN | {"stream": True},
    DRAWN | {"prompt": ["one", "two"]},
    {"prompt": ["one", "two"], "stream": True},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream": True, "logprobs": 2, "echo": True},
    {"stream": True, "prompt_logprobs": 1},
    {"echo": True, "logprobs": 2},
    {"echo": True, "max_tokens": 0},
    {"logprobs": 2, "return_tokens_as_token_ids": True},
    {"stream": True, "stop": "e", "include_stop_str_in_output": True},
    {"stream": True, "response_format": JSON_SCHEMA, "max_tokens": 20},
]
CHAT: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5,
    "temperature": 0,
}  # fmt: skip
CHATS: dict[str, list[Any]] = {
    **ANY_PATH,
    "messages": [
        MISSING, None, [], "hello", [5], [{}], [{"role": "user"}], [{"role": "x", "content": "y"}],
        [{"role": "user", "content": None}], [{"role": "user", "content": 5}],
        [{"role": "user", "content": ""}], [{"role": "user", "content": LONG}],
        [{"role": "user", "content": [{"type": "text", "text": text} for text in ("a", "b")]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}],
        [{"role": "user", "content": [{"type": "x"}]}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "\u6c49"}],
        [{"role": "user", "content": "a", "name": "me", "extra": 1},
         {"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
          "function": {"name": "weather", "arguments": "{}"}}]},
         {"role": "tool", "tool_call_id": "1", "content": "warm"}],
    ],
    "tools": [[TOOL], "x"],
    "tool_choice": ["auto", "x"],
    "chat_template_kwargs": [{"a": 1}, "x"],
}  # fmt: skip
CHAT_MIXES: list[dict[str, Any]] = [
    DRAWN,
    DRAWN | {"stream": True},
    {"logprobs": True, "top_logprobs": 2},
    {"stream": True, "logprobs": True, "top_logprobs": 1},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"continue_final_message": True, "add_generation_prompt": False},
    {"structured_outputs": {"regex": "a"}, "tools": [TOOL], "tool_choice": "required"},
    *(
        {"tools": [TOOL], "max_tokens": 30, "tool_choice": choice, "stream": choice != NAMED}
        for choice in ("auto", "required", NAMED)
    ),
]
RESPONSE: dict[str, Any] = {
    "model": "tiny", "input": "hello", "max_output_tokens": 5, "temperature": 0,
}  # fmt: skip
RESPONSES: dict[str, list[Any]] = {
    **ANY_PATH,
    "input": [
        MISSING, None, 5, [], "", [5], LONG, [{"role": "user", "content": "a"}],
        [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        [{"type": "function_call_output", "call_id": "1", "output": "42"}], [{"type": "x"}],
    ],
    "max_output_tokens": [0, None],
    "instructions": ["be brief", 5],
    "tools": [[{"type": "function", "name": "weather", "parameters": SCHEMA}], "x"],
    "background": [True],
    "store": [True],
}  # fmt: skip
RESPONSE_MIXES: list[dict[str, Any]] = [
    {"stream": True, "instructions": "be brief"},
    {"store": False, "background": True},
]


def nested(depth: int) -> bytes:
    """A completion with a field of lists in lists."""
    return b'{"model": "tiny", "prompt": "x", "max_tokens": 2, "user": %s%s}' % (
        b"[" * depth,
        b"]" * depth,
    )


WHOLE = json.dumps(COMPLETION).encode()
BODIES: dict[str, bytes] = {
    "none": b"",
    "no JSON": b"no JSON",
    "half": WHOLE[:-1],
    "list": b"[1]",
    "text": b'"x"',
    "number": b"5",
    "null": b"null",
    "object": b"{}",
    "NaN": WHOLE.replace(b'"temperature": 0', b'"temperature": NaN'),
    "infinity": WHOLE.replace(b'"temperature": 0', b'"temperature": -Infinity'),
    "same key twice": WHOLE[:-1] + b', "max_tokens": 3}',
    "byte order mark": b"\xef\xbb\xbf" + WHOLE,
    "UTF-16": WHOLE.decode().encode("utf-16"),
    "UTF-32": WHOLE.decode().encode("utf-32-le"),
    "no UTF-8": WHOLE.replace(b"hello", b"\xff\xfe"),
    "white space": b"\n " + WHOLE + b" \n",
    "rest": WHOLE + b"x",
    "control character": WHOLE.replace(b"hello", b"a\x00b"),
    "digits": WHOLE.replace(b'"max_tokens": 5', b'"max_tokens": ' + b"5" * 5000),
    "large, scored": WHOLE[:-1] + b', "user": "%s"}' % (b"x" * (3 << 20)),
    **{f"nested {depth}": nested(depth) for depth in (20, 500, 950, 1000, 100_000)},
}
HEADERS: dict[str, tuple[bytes, dict[str, str]]] = {
    "no key": (WHOLE, {"Authorization": ""}),
    "another key": (WHOLE, {"Authorization": "Bearer sk-2"}),
    "no scheme": (WHOLE, {"Authorization": KEY}),
    "no content type": (WHOLE, {"Content-Type": ""}),
    "text": (WHOLE, {"Content-Type": "text/plain"}),
    "form": (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}),
    "character set": (WHOLE, {"Content-Type": "application/json; charset=utf-8"}),
    "upper case": (WHOLE, {"Content-Type": "Application/JSON"}),
    "a kind of JSON": (WHOLE, {"Content-Type": "application/vnd.api+json"}),
    "compressed": (gzip.compress(WHOLE), {"Content-Encoding": "gzip"}),
    "said to be compressed": (WHOLE, {"Content-Encoding": "gzip"}),
    "request id": (WHOLE, {"X-Request-Id": "mine"}),
    "priority": (WHOLE, {"X-Vllm-Priority": "3"}),
    "no priority": (WHOLE, {"X-Vllm-Priority": "x"}),
    "class": (WHOLE, {"X-User-Class": "batch"}),
    "origin": (WHOLE, {"Origin": "http://x"}),
}
OTHERS: list[tuple[str, str, Any]] = [
    ("GET", "/v1/models", None), ("GET", "/v1/models/tiny", None), ("GET", "/ping", None),
    ("GET", "/version", None), ("GET", "/nowhere", None), ("GET", "/v1/responses/nobody", None),
    ("GET", "/openapi.json", None), ("POST", "/v1/responses/nobody/cancel", {}),
    *((m, "/v1/completions", None) for m in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")),
    ("PUT", "/v1/chat/completions", CHAT), ("POST", "/v1/completions/", COMPLETION),
    ("POST", "/v1//completions", COMPLETION), ("POST", "/v1/completions?a=b", COMPLETION),
    ("POST", "/v1/embeddings", {"model": "tiny", "input": "a"}),
    ("POST", "/tokenize", {"model": "tiny", "prompt": "a"}),
    ("POST", "/detokenize", {"model": "tiny", "tokens": [5]}),
    ("POST", "/v1/completions/render", COMPLETION), ("POST", "/invocations", CHAT),
    ("POST", "/v1/messages", {**CHAT, "max_tokens": 5}), ("POST", "/v1/messages", {}),
    ("POST", "/v1/chat/completions/batch", {**CHAT, "messages": [CHAT["messages"]] * 2}),
]  # fmt: skip


def cases() -> Iterator[tuple[str, Case]]:
    """Every request by a name that says what is special about it."""
    tables = [
        ("/v1/completions", COMPLETION, COMPLETIONS, COMPLETION_MIXES),
        ("/v1/chat/completions", CHAT, CHATS, CHAT_MIXES),
        ("/v1/responses", RESPONSE, RESPONSES, RESPONSE_MIXES),
    ]
    for path, plain, fields, mixes in tables:
        single = [{name: value} for name, values in fields.items() for value in values]
        for change in [{}, *single, *mixes]:
            body = {key: one for key, one in (plain | change).items() if one is not MISSING}
            told = str({key: one if key in body else "-" for key, one in change.items()})
            yield f"{path} {told[:90]}", Case("POST", path, json.dumps(body).encode())
        for name in ("none", "list", "object"):
            yield f"{path} body: {name}", Case("POST", path, BODIES[name])
    for name, content in BODIES.items():
        yield f"completion body: {name}", Case("POST", "/v1/completions", content)
    for name, (content, headers) in HEADERS.items():
        yield f"completion header: {name}", Case("POST", "/v1/completions", content, headers)
    for method, path, asked in OTHERS:
        content = None if asked is None else json.dumps(asked).encode()
        yield f"{method} {path} {str(asked)[:20]}", Case(method, path, content)


def test_every_request_is_answered_as_by_vllm(servers):
    differ, num_cases, statuses = {}, 0, set()
    for name, case in cases():
        theirs, ours = (send(port, case) for port in servers)
        num_cases += 1
        statuses.add(theirs.status)
        if ours != theirs:
            differ[name] = {"vLLM": theirs, "serve-vllm": ours}
    assert not differ
    assert num_cases > 150
    assert statuses >= {200, 400, 401, 404, 405}


def sample(port: int, name: str) -> float:
    """The value of one of vLLM's names on /metrics."""
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", "/metrics")
    families = text_string_to_metric_families(connection.getresponse().read().decode())
    connection.close()
    return next(s.value for one in families for s in one.samples if s.name == f"vllm:{name}")


def wait_for(port: int, state: str, count: int) -> None:
    deadline_s = time.monotonic() + 900
    while sample(port, f"num_requests_{state}") != count:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_ends_its_request(servers, streams):
    endless = {**COMPLETION, "max_tokens": 1000, "ignore_eos": True, "stream": streams}
    for port in servers:
        before = sample(port, "generation_tokens_total")
        connection = HTTPConnection("127.0.0.1", port)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(endless), headers)
        wait_for(port, "running", 1)
        connection.close()
        wait_for(port, "running", 0)
        assert sample(port, "kv_cache_usage_perc") == 0
        assert sample(port, "generation_tokens_total") - before < 1000
