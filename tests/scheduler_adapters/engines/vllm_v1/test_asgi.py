"""Messages of HTTP as the middleware reads and passes them."""

import asyncio
from typing import Any

import pytest

from scheduler_adapters.engines.vllm_v1.asgi import path_of
from tests.scheduler_adapters.engines.vllm_v1.middleware_bench import Bench, FakeScorer


@pytest.mark.parametrize(
    ("root", "path", "is_scored"),
    [
        ("/api", "/api/v1/completions", True),
        ("/v", "/v1/completions", True),  # not below that root
        ("/api", "/v1/completions", True),
        ("/v1", "/v1/completions", False),
    ],
)
def test_a_path_is_read_as_vllms_routes_read_it(root, path, is_scored):
    scope = {"path": path, "root_path": root}
    assert (path_of(scope) == "/v1/completions") == is_scored


def test_the_server_hears_of_a_client_that_leaves():
    bench, heard = Bench(FakeScorer()), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await bench.server(scope, receive, send)
        heard.append((await receive())["type"])

    bench.middleware.app = app
    asyncio.run(bench.call(b'{"prompt": "x"}'))
    assert heard == ["http.disconnect"]


def test_a_client_that_leaves_amid_its_body_is_not_counted():
    bench = Bench(FakeScorer())
    gone = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return gone.pop(0)

    async def send(message: Any) -> None: ...

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    asyncio.run(bench.middleware(scope, receive, send))
    assert bench.server.last == "http.disconnect"
    assert bench.count("unscored", "unreadable") == 0
