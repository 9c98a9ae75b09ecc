"""Step times from outside: what the rows say of an engine whose steps are known, and over HTTP."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.commands.advise.endpoint import (
    Endpoint,
    TimedAnswer,
    decodes_of,
    measure_steps,
)
from scheduler_adapters.simulator.latency.affine_fit import fit_affine
from scheduler_adapters.simulator.latency.models import AffineLatency
from tests.scheduler_adapters.commands.advise.test_command import advise, write_log

KNOWN = AffineLatency(
    base_s=5e-3, per_token_s=2e-5, per_context_token_s=1e-7, per_attention_pair_s=1e-9
)


def answers_of(latency: AffineLatency, longest: int = 1000) -> Callable[..., list[TimedAnswer]]:
    """All prompts are prefilled in one step; a word is a token and a half."""

    def ask(prompts: Sequence[str], max_tokens: int) -> list[TimedAnswer]:
        sizes = [len(prompt.split()) * 3 // 2 for prompt in prompts]
        chunk_s = [latency.step_s(0, 0, [(0, size) for size in sizes])]
        while len(chunk_s) < min(max_tokens, longest):
            context = sum(sizes) + len(sizes) * len(chunk_s)
            chunk_s.append(chunk_s[-1] + latency.step_s(len(sizes), context, []))
        return [
            TimedAnswer(sent_s=0.0, chunk_s=chunk_s, prompt_tokens=size, output_tokens=len(chunk_s))
            for size in sizes
        ]

    return ask


def test_the_rows_give_the_coefficients_of_the_engine_back() -> None:
    table = measure_steps(answers_of(KNOWN), most_tokens=2048, most_seqs=64)
    assert table.prefill_tokens.max() <= 2048
    assert set(table.num_decodes) == {0, 1, 4, 16, 64}
    latency, error = fit_affine(table)
    assert error < 1e-3
    for name in ("base_s", "per_token_s", "per_context_token_s", "per_attention_pair_s"):
        assert getattr(latency, name) == pytest.approx(getattr(KNOWN, name), rel=0.02)


def test_simultaneous_prompts_need_seats_and_long_answers() -> None:
    table = measure_steps(answers_of(KNOWN), most_tokens=512, most_seqs=4)
    assert set(table.num_decodes) == {0, 1, 4}
    with pytest.raises(DataError, match="answers end before 8 tokens"):
        measure_steps(answers_of(KNOWN, longest=5), most_tokens=512, most_seqs=4)


def test_only_the_time_in_which_all_decode_counts_in_tokens() -> None:
    early = TimedAnswer(
        sent_s=0.0, chunk_s=[0.1 * n for n in range(1, 21)], prompt_tokens=10, output_tokens=20
    )
    late = TimedAnswer(
        sent_s=0.0, chunk_s=[1.0 + 0.2 * n for n in range(6)], prompt_tokens=30, output_tokens=12
    )
    row = decodes_of([early, late])
    assert row is not None
    assert row["num_decodes"] == 2
    assert row["seconds"] == pytest.approx(0.1)  # 10 tokens of each from 1.0 s to 2.0 s
    assert row["decode_context"] == pytest.approx(10 + 10 + 5 + 30 + 2 + 5)
    assert decodes_of([early, replace(late, chunk_s=[3.0])]) is None


@dataclass
class Api:
    """What the server below answers."""

    models: bytes = b'{"data": [{"id": "tiny"}]}'
    usage: bool = True
    status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def url(api: Api) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            info = b'vllm:cache_config_info{block_size="32",num_gpu_blocks="500"} 1.0\n'
            self.reply({"/v1/models": api.models, "/metrics": info}[self.path])

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.bodies.append(body)
            api.keys.add(self.headers["Authorization"])
            pieces: list[dict[str, Any]] = [{"choices": [{"text": "a"}]}] * body["max_tokens"]
            if api.usage:
                tokens = len(body["prompt"].split())
                used = {"prompt_tokens": tokens, "completion_tokens": body["max_tokens"]}
                pieces = [*pieces, {"choices": [], "usage": used}]
            lines = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces)
            self.reply(f"{lines}data: [DONE]\n\n".encode())

        def reply(self, content: bytes) -> None:
            self.send_response(api.status)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_answers_come_with_their_tokens_and_the_key_goes_along(
    api: Api, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    endpoint = Endpoint(url)
    assert (endpoint.url, endpoint.model) == (f"{url}/v1", "tiny")
    found = endpoint.ask(["one two", "one two three"], 4)
    assert [(one.prompt_tokens, one.output_tokens) for one in found] == [(2, 4), (3, 4)]
    assert all(len(one.chunk_s) == 4 and one.sent_s <= one.chunk_s[0] for one in found)
    assert api.keys == {"Bearer sk-mine"}
    assert api.bodies[0]["model"] == "tiny"
    assert endpoint.kv_memory() == (500, 32)


def test_an_api_of_another_kind_is_one_clear_error(api: Api, url: str) -> None:
    endpoint = Endpoint(url)
    api.usage = False
    with pytest.raises(ConfigError, match="streams no answer with its usage"):
        endpoint.ask(["one"], 2)
    api.status = 401
    with pytest.raises(ConfigError, match=r"HTTP 401 .*OPENAI_API_KEY"):
        endpoint.ask(["one"], 2)
    assert endpoint.kv_memory() is None
    api.status, api.models = 200, b"<html>"
    with pytest.raises(ConfigError, match=r"'<html>', which is no OpenAI-style API"):
        Endpoint(url)
    with pytest.raises(ConfigError, match=r"no answer from .*/v1/models"):
        Endpoint("http://127.0.0.1:9")


def test_advice_rests_on_the_engine_that_answers(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.parquet")
    assert advise(log, tmp_path / "out", "--tau-b", "0.7", "--json", "--endpoint", url) == 0
    notes = " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert re.search(r"Step times of tiny were measured at http://127\S+/v1", notes)
    assert "KV memory is the engine's, 16,000 tokens" in notes
    assert (tmp_path / "out" / "steps.csv").exists()
