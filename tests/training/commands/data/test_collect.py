"""Labels from an endpoint: every prompt once, whatever the endpoint, the network or kill -9 do."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.training.collection.responses import answer
from training.__main__ import main
from training.data.cards import load_data

PROMPTS = [f"Tell me about the number {number}." for number in range(40)]


class FakeEndpoint(ThreadingHTTPServer):
    """Answers prompt N with N + 1 tokens; `plan(prompt, times asked before)` may differ."""

    daemon_threads = True
    request_queue_size = 64  # Connections beyond it would be tried again after a second.

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.plan: Callable[[str, int], tuple[int, dict[str, Any]] | None] = lambda *_: None
        self.held_after: float = math.inf
        self.go_on = threading.Event()
        self.asked: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: FakeEndpoint
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # Head and body in one packet: two would wait 40 ms for each other.

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = request["messages"][0]["content"] if "messages" in request else request["prompt"]
        with self.server.lock:
            held = sum(self.server.asked.values()) >= self.server.held_after
            before = self.server.asked[prompt]
            self.server.asked[prompt] += 1
            self.server.requests.append(request)
            self.server.keys.add(self.headers["authorization"])
        if held:
            self.server.go_on.wait()
        status, body = self.server.plan(prompt, before) or (200, answer(number_in(prompt) + 1))
        content = json.dumps(body).encode()
        with contextlib.suppress(OSError):  # The client may have been killed.
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


def number_in(prompt: str) -> int:
    return int(prompt.rstrip(".").split()[-1])


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FakeEndpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "lengths" / "tiny-llm.jsonl"


@pytest.fixture
def collect(endpoint, prompts, out, capsys):
    """Runs the command; its status and what --json printed, or its error line."""

    def run(*settings: str) -> tuple[int, Any]:
        status = main(command(endpoint.url, prompts, out, *settings)[3:])
        captured = capsys.readouterr()
        if status == 2:
            assert captured.out == ""
            return status, captured.err.splitlines()[-1]
        return status, json.loads(captured.out)

    return run


@pytest.fixture
def training(collect):
    """The command that `refused` runs here."""
    return collect


def command(url: str, prompts: Path, out: Path, *settings: str) -> list[str]:
    options = ["--endpoint", url, "--model", "tiny-llm", "--prompts", str(prompts)]
    run = [sys.executable, "-m", "training", "collect", *options, "--out", str(out)]
    return [*run, "--json", *settings]


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def assert_every_prompt_once(out: Path) -> None:
    found = {row["prompt"]: row["output_tokens"] for row in rows(out)}
    assert len(rows(out)) == len(found) == len(PROMPTS)
    assert found == {prompt: number + 1 for number, prompt in enumerate(PROMPTS)}


def test_every_prompt_becomes_one_row_and_the_card_loads_at_once(collect, out):
    status, result = collect()
    assert (status, result["rows"], result["new_rows"]) == (0, 40, 40)
    assert result["output_tokens"] == sum(range(1, 41))
    assert_every_prompt_once(out)
    data = load_data(result["card"])
    assert {(r["prompt"], *r["output_tokens"]) for r in data.records} == {
        (prompt, number + 1) for number, prompt in enumerate(PROMPTS)
    }
    assert set(data.records["model"]) == {"tiny-llm"}
    before = out.read_bytes()
    status, result = collect()
    assert (status, result["new_rows"], result["rows"]) == (0, 0, 40)
    assert out.read_bytes() == before


@pytest.mark.slow
def test_kill_9_and_ctrl_c_neither_lose_nor_repeat_a_prompt(endpoint, prompts, out, capsys):
    run = command(endpoint.url, prompts, out, "--concurrency", "4")
    kept = asked_twice = 0
    for stop_at, stop_by, status in ((9, signal.SIGKILL, -9), (22, signal.SIGINT, 130)):
        endpoint.held_after = stop_at
        process = subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 900
        # Four requests are held; the others are answered and written.
        while not out.is_file() or out.read_bytes().count(b"\n") < stop_at - asked_twice:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        os.kill(process.pid, stop_by)
        assert process.wait() == status
        complete = rows(out)
        assert kept < len(complete) < len(PROMPTS)
        kept = len(complete)
        asked_twice += 4
    card = str(out.with_name("card.yaml"))
    assert len(load_data(card).records) == kept  # Ctrl-C leaves something to train on.
    endpoint.held_after = math.inf
    endpoint.go_on.set()
    assert main(run[3:]) == 0
    assert json.loads(capsys.readouterr().out)["new_rows"] == len(PROMPTS) - kept
    assert_every_prompt_once(out)
    # Only what was in flight when the process died was asked twice.
    assert sum(endpoint.asked.values()) <= len(PROMPTS) + 2 * 4
    assert len(load_data(card).records) == len(PROMPTS)


def test_a_busy_or_broken_endpoint_is_asked_ever_more_slowly(collect, endpoint, out, no_waiting):
    statuses = [429, 503, 500]
    endpoint.plan = lambda _, before: (statuses[before], {}) if before < 3 else None
    status, result = collect("--concurrency", "1")
    assert (status, result["retries"]) == (0, 3 * 40)
    assert_every_prompt_once(out)
    for attempt in range(3):
        longest = 0.5 * 2**attempt
        assert all(longest / 2 <= wait <= longest for wait in no_waiting[attempt::3])


def test_an_outage_stops_the_run_and_keeps_what_was_collected(
    collect, refused, endpoint, out, no_waiting
):
    endpoint.plan = lambda *_: (503, {}) if len(endpoint.asked) > 12 else None
    assert "failed 10 times in a row, the last: HTTP 503" in refused("--concurrency", "2")
    kept = len(rows(out))
    assert kept in (11, 12)  # On a busy machine the second worker may be in the middle of one.
    assert kept == len(load_data(str(out.with_name("card.yaml"))).records)
    endpoint.plan = lambda *_: None
    assert collect()[0] == 0
    assert_every_prompt_once(out)


def test_a_refused_prompt_is_told_and_the_others_are_collected(collect, endpoint, out):
    refusal = {"error": {"message": "This model's maximum context\nlength is 8 tokens."}}
    endpoint.plan = lambda prompt, _: (400, refusal) if prompt == PROMPTS[7] else None
    status, result = collect()
    assert (status, result["rows"], result["unanswered"]) == (1, 39, 1)
    assert result["first_refusal"].endswith("maximum context length is 8 tokens.")
    endpoint.plan = lambda *_: None
    assert collect()[1]["new_rows"] == 1
    assert_every_prompt_once(out)


def test_one_prompt_that_breaks_the_endpoint_stops_no_others(
    collect, endpoint, no_waiting, monkeypatch
):
    endpoint.plan = lambda prompt, _: (500, {}) if prompt == PROMPTS[3] else None
    # Enough attempts that the other worker gets an answer meanwhile: nothing waits in this test.
    monkeypatch.setattr("training.collection.endpoint.MAX_ATTEMPTS", 40)
    status, result = collect("--concurrency", "2")
    assert (status, result["rows"], result["unanswered"]) == (1, 39, 1)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, {"error": {"message": "bad key"}}, "HTTP 401: bad key); check --endpoint"),
        (422, {"detail": "max_tokens?"}, "refuses every prompt"),
        (200, {"choices": []}, "without usage.completion_tokens"),
        (200, ["what?"], "not JSON"),
    ],
)
def test_an_endpoint_that_cannot_work_stops_the_run_at_once(
    refused, endpoint, out, status, body, message
):
    endpoint.plan = lambda *_: (status, body)
    line = refused("--concurrency", "2")
    assert line.startswith("error: ")
    assert message in line
    assert sum(endpoint.asked.values()) <= 12
    assert not list(out.parent.iterdir())


def test_an_address_without_a_server_or_a_scheme_is_one_line(refused, endpoint):
    endpoint.server_close()
    assert "no server answers at" in refused()
    assert "use an address such as" in refused("--endpoint", "localhost:8000")


def test_the_request_carries_the_settings_and_the_key(collect, endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    collect(
        "--max-tokens", "9", "--temperature", "0.7", "--extra", '{"seed": 3}',
        "--api", "completions", "--samples", "2",
    )  # fmt: skip
    expected = {"model": "tiny-llm", "max_tokens": 9, "temperature": 0.7, "seed": 3}
    assert endpoint.keys == {"Bearer sk-1"}
    assert set(endpoint.asked.values()) == {2}
    for request in endpoint.requests:
        assert request.pop("prompt") in PROMPTS
        assert request == expected


def test_samples_of_a_prompt_stay_apart_and_repeats_of_it_do_not(collect, prompts, out):
    with prompts.open("a") as file:
        file.write(json.dumps({"prompt": PROMPTS[0].upper()}) + "\n")
    status, result = collect("--samples", "2")
    assert (status, result["prompts"], result["repeated_prompts"]) == (0, 40, 1)
    assert len({(row["prompt"], row["sample"]) for row in rows(out)}) == len(rows(out)) == 80


def test_reasoning_reaches_the_card_and_cuts_are_counted(collect, endpoint):
    endpoint.plan = lambda *_: (200, answer(10, "length", reasoning_content="y" * 4))
    _, result = collect()
    assert (result["reasoning_tokens"], result["cut"]) == (40 * 8, 40)
    (lengths,) = {
        (*r["output_tokens"], r["reasoning_tokens"], r["answer_tokens"])
        for r in load_data(result["card"]).records
    }
    assert lengths == (10, 8, 2)


def test_bad_prompts_are_one_line_and_ask_nothing(refused, endpoint, prompts, out):
    prompts.write_text('{"prompt": "a"}\n{"prompt": null}\n')
    assert "row 1: it has no prompt" in refused()
    assert not endpoint.asked
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tiny-llm.jsonl", "notes\n", "row 0: not a JSON object"),
        ("tiny-llm.jsonl", '{"a": 1}\n', "collect wrote"),
        ("card.yaml", "path: other.parquet\n", "describes another table"),
    ],
)
def test_files_of_others_are_left_alone(refused, out, name, content, message):
    out.parent.mkdir()
    out.with_name(name).write_text(content)
    assert message in refused()
    assert [(path.name, path.read_text()) for path in out.parent.iterdir()] == [(name, content)]


def test_without_json_the_counts_are_told_in_words(endpoint, prompts, out, capsys):
    *arguments, last = command(endpoint.url, prompts, out)[3:]
    assert last == "--json"
    assert main(arguments) == 0
    assert f"{len(PROMPTS)}, {len(PROMPTS)} of them new" in capsys.readouterr().out
