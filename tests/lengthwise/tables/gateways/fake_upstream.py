"""An OpenAI server on loopback whose answers have a known number of tokens, and a sink of logs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Thread
from typing import Any

REASONING = 7


def prompt_tokens(prompt: str) -> int:
    """Tokens of a prompt, as the server counts them."""
    return len(prompt) + 3


def output_tokens(prompt: str) -> int:
    """Tokens of an answer that no limit cuts."""
    return 2 * len(prompt) + REASONING


def usage_of(body: dict[str, Any]) -> dict[str, Any]:
    """The `usage` of a response."""
    prompt = body["messages"][-1]["content"]
    size = prompt_tokens(prompt)
    each = min(output_tokens(prompt), body.get("max_tokens", 10**6))
    output = each * body.get("n", 1)
    details = {"reasoning_tokens": REASONING if prompt.startswith("think") else 0}
    return {
        **{"prompt_tokens": size, "completion_tokens": output, "total_tokens": size + output},
        "completion_tokens_details": details,
    }


class Upstream(BaseHTTPRequestHandler):
    """One request: a chat, an embedding, or rows of a log."""

    protocol_version = "HTTP/1.1"
    logged: SimpleQueue[dict[str, str]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/sink":
            self.logged.put(body)
            return self.send({})
        if self.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
            usage = {"prompt_tokens": 4, "total_tokens": 4}
            return self.send({"object": "list", "model": "m", "data": data, "usage": usage})
        if body["messages"][-1]["content"] == "fail":
            return self.send({"error": {"message": "down", "code": 500}}, 500)
        end = "length" if "max_tokens" in body else "stop"
        head = {"id": "chatcmpl-1", "created": 1, "model": "m", "usage": usage_of(body)}
        if body.get("stream"):
            return self.stream({**head, "object": "chat.completion.chunk"}, end)
        message = {"role": "assistant", "content": "word"}
        choice = {"message": message, "finish_reason": end}
        choices = [{**choice, "index": number} for number in range(body.get("n", 1))]
        return self.send({**head, "object": "chat.completion", "choices": choices})

    def stream(self, last: dict[str, Any], end: str) -> None:
        deltas = [({"role": "assistant", "content": "word"}, None), ({"content": " "}, None)]
        chunks = [
            {**last, "usage": None, "choices": [{"index": 0, "delta": delta, "finish_reason": why}]}
            for delta, why in (*deltas, ({}, end))
        ]
        lines = [json.dumps(chunk) for chunk in (*chunks, {**last, "choices": []})]
        text = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]"))
        self.send(text, kind="text/event-stream")

    def send(self, answer: Any, status: int = 200, kind: str = "application/json") -> None:
        content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def fake_upstream() -> Iterator[tuple[str, SimpleQueue[dict[str, str]]]]:
    """Serve; yield the address and the queue of rows posted to /sink."""
    logged: SimpleQueue[dict[str, str]] = SimpleQueue()
    handler = type("Handler", (Upstream,), {"logged": logged})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", logged
        server.shutdown()
