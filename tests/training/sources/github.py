"""A server that has small repositories at the addresses of a mirror, for as long as it is open."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from training.sources.repositories import blob_hash


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _lines(*values: Any) -> bytes:
    return b"".join(_json(value) + b"\n" for value in values)


def _answer(question: int, text: str) -> dict[str, Any]:
    turns = [{"content": text, "token_len": 3}]
    return {"question_id": f"q{question}", "choices": [{"index": 0, "turns": turns}]}


def _item(number: int, text: str) -> dict[str, Any]:
    return {"id": f"i{number}", "chat_history": [f"prompt {number}"], "output": [text]}


REPOSITORIES: dict[str, dict[str, bytes]] = {
    "teknium1/GPTeacher": {
        "Codegen/codegen-instruct.json": _json(
            [
                {"instruction": "Add.", "input": "1, 2\n", "response": "It is three"},
                {"instruction": "Greet.", "input": "", "response": "Hello"},
            ]
        ),
        "Roleplay/roleplay-simple-deduped-roleplay-instruct.json": _json(
            [{"instruction": "Be a bee.", "input": "", "response": "Buzz buzz"}]
        ),
        "Toolformer/toolformer-dedupe-only-dataset.json": _json(
            [{"instruction": "Call.", "input": "", "response": "Called"}]
        ),
        "README.md": b"not fetched",
    },
    "stayanti/alpaca-gpt-4": {
        f"alpaca_data/file_{first}-{first + 24}.json": _json(
            [{"instruction": f"Do {first}.", "input": "", "output": "Done. " * (first + 1)}]
        )
        for first in (25, 0, 100)
    },
    "tatsu-lab/alpaca_eval": {
        f"results/{model}/model_outputs.json": _json([{"instruction": "Why?", "output": text}])
        for model, text in (("m", "So it is."), ("a model", "Because."), ("NullModel", "cheat"))
    },
    "meltemi-ai/arena-hard-auto-english": {
        "data/arena-hard-v0.1/question.jsonl": _lines(
            {"question_id": "q1", "cluster": "maths", "turns": [{"content": "One?"}]},
            {"question_id": "q2", "cluster": "code", "turns": [{"content": "Two?"}]},
        ),
        "data/arena-hard-v0.1/model_answer/m.jsonl": _lines(
            _answer(1, "Yes, one"), _answer(2, "2")
        ),
        "data/arena-hard-v0.1/model_answer/krikri-run4.jsonl": _lines(_answer(1, "own")),
    },
    "WildEval/ZeroEval": {
        "result_dirs/gsm/m.json": _json([_item(1, "a b c"), _item(2, "a")]),
        "result_dirs/crux/o1-mini.json": _json([_item(1, "a b")]),
        "result_dirs/alpaca_eval/m.json": b"not fetched",
    },
}


class Hub:
    """The server's address, and how often each path was asked for."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: Counter[str] = Counter()
        self.files = {source: dict(files) for source, files in REPOSITORIES.items()}
        """What the lists say of each repository."""
        self.served: dict[str, bytes] = {}
        """Other content for a path than its list says."""
        self.broken: set[str] = set()
        """Paths that get an error."""

    def answer(self, path: str) -> bytes | None:
        """Return what is at a path; None for an error."""
        kind, owner, name, _, *rest = unquote(path).strip("/").split("/")
        files, file = self.files[f"{owner}/{name}"], "/".join(rest)
        self.asked[file] += 1
        if kind == "trees":
            tree = [
                {"path": key, "type": "blob", "size": len(value), "sha": blob_hash(value)}
                for key, value in files.items()
            ]
            return _json({"tree": [*tree, {"path": "folder", "type": "tree", "sha": ""}]})
        return None if file in self.broken else self.served.get(file, files.get(file))


@contextmanager
def open_hub() -> Iterator[Hub]:
    """Serve the repositories on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = hub.answer(self.path)
            self.send_response(500 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
