"""An OpenAI server on loopback whose answers have a known number of tokens, and a sink of logs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

Rows = SimpleQueue[dict[str, str]]


def counts_of(prompt: str) -> tuple[int, int, int]:
    """Tokens of a prompt, of an answer that no limit cuts, and of the reasoning in it."""
    return len(prompt) + 3, 2 * len(prompt) + 7, 7 * prompt.startswith("think")


class Upstream(BaseHTTPRequestHandler):
    """One request: a chat, an embedding, or rows of a log."""

    protocol_version = "HTTP/1.1"
    logged: Rows
    left: Event

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/sink":
            self.logged.put(body)
            self.left.set()
            return self.send({})
        if self.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
            usage = {"prompt_tokens": 4, "total_tokens": 4}
            return self.send({"object": "list", "model": "m", "data": data, "usage": usage})
        prompt, end = body["messages"][-1]["content"], "length" if "max_tokens" in body else "stop"
        if prompt == "fail":
            return self.send({"error": {"message": "down", "code": 500}}, 500)
        size, output, reasoning = counts_of(prompt)
        output = min(output, body.get("max_tokens", output)) * body.get("n", 1)
        usage = {"prompt_tokens": size, "completion_tokens": output, "total_tokens": size + output}
        usage |= {"completion_tokens_details": {"reasoning_tokens": reasoning}}  # type: ignore[dict-item]
        head = {"id": "chatcmpl-1", "created": 1, "model": "m", "usage": usage}
        said = {"role": "assistant", "content": "word"}
        if not body.get("stream"):
            choice = {"message": said, "finish_reason": end}
            choices = [{**choice, "index": number} for number in range(body.get("n", 1))]
            return self.send({**head, "object": "chat.completion", "choices": choices})
        parts = [{"delta": said, "finish_reason": None}, {"delta": {}, "finish_reason": end}]
        chunks = [{"usage": None, "choices": [{"index": 0, **part}]} for part in parts]
        kind = {"object": "chat.completion.chunk"}
        lines = [json.dumps({**head, **kind, **chunk}) for chunk in (*chunks, {"choices": []})]
        if prompt == "left":
            self.left.clear()
            self.send(f"data: {lines[0]}\n\n", is_whole=False)
            self.left.wait(60)  # for the row of this call
            return None
        return self.send("".join(f"data: {line}\n\n" for line in (*lines, "[DONE]")))

    def send(self, answer: Any, status: int = 200, is_whole: bool = True) -> None:
        is_stream = isinstance(answer, str)
        content = (answer if is_stream else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
        self.send_header("content-length", str(len(content) + (not is_whole)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def fake_upstream() -> Iterator[tuple[str, Rows]]:
    """Serve; yield the address and the queue of rows posted to /sink."""
    logged: Rows = SimpleQueue()
    handler = type("Handler", (Upstream,), {"logged": logged, "left": Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", logged
        server.shutdown()
