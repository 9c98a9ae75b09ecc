"""Messages and headers of ASGI, the interface between an HTTP server and its application."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GRACE_S: Final = 0.5
"""Seconds in which open answers may end after the engine's own `--shutdown-timeout`."""


def peer_of(scope: Scope) -> str | None:
    """Return the address of a connection; None: unknown, as on a Unix socket."""
    return (scope.get("client") or (None,))[0]


def bound_end(scope: Scope) -> None:
    """Bound the wait of vLLM's HTTP server for open answers, once its engine has stopped."""
    # Without its limit, a request that met the end of the engine holds the server for ever.
    server = getattr(getattr(scope.get("app"), "state", None), "server", None)
    if server is not None and server.config.timeout_graceful_shutdown is None:
        server.config.timeout_graceful_shutdown = GRACE_S


async def send_json(send: Send, content: object, status: int) -> None:
    """Send a whole answer."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json")],
        }
    )
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


def first_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the first value of each header, as vLLM reads them."""
    return dict(reversed(scope["headers"]))


def path_of(scope: Scope) -> str:
    """Return the path of a request below the root of its application."""
    path, root = scope["path"], scope.get("root_path", "")
    return str(path.removeprefix(root) if path.startswith(f"{root}/") else path)


async def read_body(receive: Receive) -> tuple[Message, bytes]:
    """Return a body in one message and its content, or the message of a client that has left."""
    parts: list[bytes] = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            content = b"".join(parts)
            return {"type": "http.request", "body": content, "more_body": False}, content
    return message, b""


def replay(message: Message, receive: Receive) -> Receive:
    """Return a `receive` that begins with this message."""
    pending = [message]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def without(scope: Scope, *names: bytes) -> Scope:
    """Return a scope, or the start of an answer, without these headers."""
    return {**scope, "headers": [each for each in scope["headers"] if each[0] not in names]}


def appending(content: bytes, send: Send) -> Send:
    """Return a `send` that adds `content` to the end of the answer."""

    async def appending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = without(message, b"content-length")
        elif not message.get("more_body"):
            message = {**message, "body": message.get("body", b"") + content}
        await send(message)

    return appending
