"""Addresses that headers claim, at uvicorn as `serve-vllm` and vLLM start it."""

import asyncio
import json
import os
import socket
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lengthwise.child_processes import free_port
from lengthwise.errors import ConfigError
from scheduler_adapters.__main__ import main
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.engines.user_classes import UserClasses
from scheduler_adapters.engines.vllm_v1 import middleware
from scheduler_adapters.engines.vllm_v1.request_scores import RequestScores, ScoreMetrics

uvicorn = pytest.importorskip("uvicorn")
PROXY, LOOPBACK, STRANGER = "127.0.0.2", "127.0.0.1", "127.0.0.3"
CLASSES = UserClasses(
    tbt_s={"paying": None, "free": None},
    header="X-User-Class",
    trusted_proxies=(PROXY,),
    default="free",
)
FORWARDED = [
    ({}, None),
    ({"X-Forwarded-For": "203.0.113.7"}, "203.0.113.7"),
    ({"X-Forwarded-For": f"198.51.100.1, 203.0.113.7, {PROXY}"}, "203.0.113.7"),
    ({"X-Real-IP": PROXY}, None),
    ({"Forwarded": f"for={PROXY}"}, None),
    ({"X-Forwarded-For": PROXY, "X-Real-IP": "1.1.1.1"}, PROXY),
]
"""Headers, and the address of the client if the peer is the named proxy; None: the proxy's own."""


async def nowhere(scope: Any, receive: Any, send: Any) -> None:
    """An application that is never reached."""


class Seen(middleware.ScoreMiddleware):
    """The middleware, which answers with the class and the budget of a request."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        client = self._client_of(scope, dict(scope["headers"]))
        seen: dict[str, Any] = {"budget": client.name}

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen["class"] = json.loads((await receive())["body"])["vllm_xargs"]["lengthwise_class"]

        self.app = app
        await super().__call__(scope, receive, send)
        answer = json.dumps(seen).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})


@pytest.fixture(scope="module", params=[None, "*", f"{LOOPBACK},{PROXY}"])
def port(request):
    """A server under each FORWARDED_ALLOW_IPS of the operator's."""

    class Started(Exception):
        pass

    def exec_instead(program: str, command: list[str]) -> None:
        raise Started

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execv", exec_instead)
        patch.setattr(
            "scheduler_adapters.commands.serve_vllm._require_engine", lambda policy, options: None
        )
        patch.setenv(middleware.VARIABLE, "")
        patch.setenv(SHARED_FOLDER, "/somewhere")
        patch.setenv(middleware.ALLOWED_PROXIES, request.param or "")
        if request.param is None:
            patch.delenv(middleware.ALLOWED_PROXIES)
        with pytest.raises(Started):
            main(["serve-vllm", "m", f"--port={free_port()}"])
        patch.setenv(middleware.ALLOWED_PROXIES, os.environ[middleware.ALLOWED_PROXIES])
        config = middleware.MiddlewareConfig()
        scores = RequestScores(config, None, ScoreMetrics(CollectorRegistry()))
        app = Seen(nowhere, config, scores=scores, classes=CLASSES)
        # The options are those that vLLM's `serve_http` gives; it names no proxy.
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with socket.create_server((LOOPBACK, 0)) as listening:
        ran = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        ran.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        ran.join()


def seen(port: int, peer: str, headers: dict[str, str]) -> dict[str, Any]:
    body = b'{"prompt": "x"}'
    sent = {"Host": "x", "Content-Type": "application/json", "Content-Length": len(body), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    with socket.create_connection((LOOPBACK, port), 60, (peer, 0)) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\n{lines}Connection: close\r\n\r\n"
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    found: dict[str, Any] = json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])
    return found


@pytest.mark.parametrize(("headers", "behind"), FORWARDED)
@pytest.mark.parametrize("peer", [LOOPBACK, PROXY, STRANGER])
def test_class_and_budget_are_the_peers_or_a_named_proxys(port, peer, headers, behind):
    is_named = peer == PROXY
    assert seen(port, peer, {**headers, "X-User-Class": "paying"}) == {
        "class": "paying" if is_named else "free",
        "budget": (behind or peer) if is_named else peer,
    }


@pytest.mark.parametrize("allowed", [None, "*", LOOPBACK])
def test_a_server_that_believes_headers_is_not_served(monkeypatch, allowed):
    monkeypatch.setenv(middleware.ALLOWED_PROXIES, allowed or "")
    if allowed is None:
        monkeypatch.delenv(middleware.ALLOWED_PROXIES)
    with pytest.raises(ConfigError, match=f"start vLLM with {middleware.ALLOWED_PROXIES}="):
        middleware.VllmScores(nowhere)
