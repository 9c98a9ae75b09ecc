"""HTTP endpoint for metrics scrapes: one thread for any number of silent connections."""

import asyncio
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from lengthwise.errors import ConfigError
from scoring_service.transport.limits import BlockedCalls

_MAX_REQUEST_BYTES: Final = 8192
_MAX_CONNECTIONS: Final = 64
_CLOSE_S: Final = 10.0
"""Longest time to close the open connections."""
Page = Callable[[str], tuple[bytes, str]]
"""Returns body and content type for the value of a request's Accept header."""


class ScrapeEndpoint:
    """Answers GET /metrics, and closes each connection after `timeout_s` at most.

    Beyond `_MAX_CONNECTIONS` the oldest one is closed. `may_read` checks the Authorization header.
    """

    def __init__(
        self,
        host: str,
        port: int,
        page: Page,
        *,
        timeout_s: float,
        may_read: Callable[[str], bool] = lambda authorization: True,
    ) -> None:
        self._page = page
        self._may_read = may_read
        self._timeout_s = timeout_s
        self._open: BlockedCalls[asyncio.StreamWriter] = BlockedCalls(
            lambda writer: writer.transport.abort(), timeout_s=timeout_s, max_calls=_MAX_CONNECTIONS
        )
        self._loop = asyncio.new_event_loop()
        listen = asyncio.start_server(self._serve, host.strip("[]"), port, limit=_MAX_REQUEST_BYTES)
        try:
            self._server = self._loop.run_until_complete(listen)
        except OSError as error:
            self._loop.close()
            raise ConfigError(
                f"cannot serve metrics on {host}:{port} ({error.strerror}); use another port"
            ) from error
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="scrapes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and close the open connections."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        self._loop.run_forever()
        # Closing the server first would leave connections open that it is about to accept.
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        while tasks := asyncio.all_tasks(self._loop):
            self._loop.run_until_complete(asyncio.sleep(0))
            self._open.cancel_all()
            ended, _ = self._loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_S))
            if not ended:
                break
        self._server.close()
        # An aborted connection is closed in the next round of the loop.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            async with asyncio.timeout(self._timeout_s):
                writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # A silent, endless or closed connection gets no answer.
        finally:
            self._open.remove(writer)
            writer.transport.abort()

    def _answer(self, request: bytes) -> bytes:
        first, *headers = request.decode("latin-1").split("\r\n")
        method, _, target = first.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        if not target.rpartition(" ")[2].startswith("HTTP/1."):
            return _response(400)
        if method != "GET":
            return _response(405)
        if path not in ("/", "/metrics"):
            return _response(404)
        fields = [line.partition(":") for line in headers]
        sent = {name.lower(): value.strip() for name, _, value in reversed(fields)}
        if not self._may_read(sent.get("authorization", "")):
            return _response(401)
        body, kind = self._page(sent.get("accept", ""))
        return _response(200, body, kind)


def _response(status: int, body: bytes = b"", kind: str = "text/plain") -> bytes:
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
