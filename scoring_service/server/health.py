"""The standard health service, `grpc.health.v1.Health`, on the thread that serves all calls.

grpcio's own servicer gives each Watch a thread and holds its lock while that thread waits. A few
watchers then block the whole service. Here a watcher is an entry in a table.
"""

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from scoring_service.transport.direct import DirectCall, Handle
from scoring_service.transport.limits import BlockedCalls

SERVICE: Final = "grpc.health.v1.Health"
MAX_WATCHERS: Final = 1024
"""Number of watches beyond which the oldest one ends; its client may watch again."""
_NO_MORE: Final = (
    grpc.StatusCode.UNAVAILABLE,
    "the service stops, or too many newer watches are open; watch again",
)


@dataclass(eq=False, slots=True)
class _Watcher:
    """A Watch call. gRPC sends one message at a time: a later state is sent after this one."""

    call: DirectCall
    service: str
    last_sent: bytes = b""
    end: tuple[grpc.StatusCode, str] | None = None
    is_sending: bool = False


class Health:
    """Health of a server, the same for all of its services, given by their full names."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._is_serving = False
        self._lock = threading.Lock()
        end = partial(self._end, end=_NO_MORE)
        self._watchers = BlockedCalls[_Watcher](end, timeout_s=math.inf, max_calls=MAX_WATCHERS)

    def methods(self) -> Mapping[str, Handle]:
        return {"Check": self._check, "Watch": self._watch}

    def set_serving(self, serving: bool) -> None:
        """Set SERVING or NOT_SERVING, and send it to all watchers."""
        with self._lock:
            self._is_serving = serving
        for watcher in self._watchers:
            self._update(watcher)

    def close(self) -> None:
        """End every watch: the server's own end waits for open calls."""
        self._watchers.cancel_all()

    def _check(self, call: DirectCall, serialized: bytes) -> None:
        service = _service_of(call, serialized)
        if service in self._services:
            call.respond(self._response(service))
        elif service is not None:
            call.fail(grpc.StatusCode.NOT_FOUND, f"no service {service!r:.80} here")

    def _watch(self, call: DirectCall, serialized: bytes) -> None:
        service = _service_of(call, serialized)
        if service is None:
            return
        watcher = _Watcher(call, service)
        call.on_cancel = partial(self._leave, watcher)
        self._watchers.add(watcher)
        self._update(watcher)

    def _leave(self, watcher: _Watcher) -> None:
        self._watchers.remove(watcher)
        self._end(watcher, (grpc.StatusCode.CANCELLED, "the client has left"))

    def _end(self, watcher: _Watcher, end: tuple[grpc.StatusCode, str]) -> None:
        watcher.end = watcher.end or end
        self._update(watcher)

    def _response(self, service: str) -> bytes:
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if self._is_serving else kinds.NOT_SERVING
        if service not in self._services:
            status = kinds.SERVICE_UNKNOWN
        return bytes(kinds(status=status).SerializeToString())

    def _update(self, watcher: _Watcher, *, has_sent: bool = False) -> None:
        """Send the present state unless it was sent; end the call where it has an `end`."""
        with self._lock:
            watcher.is_sending = watcher.is_sending and not has_sent
            if watcher.is_sending:
                return
            if watcher.end is not None:
                watcher.call.fail(*watcher.end)
            elif (message := self._response(watcher.service)) != watcher.last_sent:
                watcher.last_sent, watcher.is_sending = message, True
                watcher.call.send(message, partial(self._update, watcher, has_sent=True))


def _service_of(call: DirectCall, serialized: bytes) -> str | None:
    """Return the service of a request; None for a malformed one, whose call has then failed."""
    try:
        return str(health_pb2.HealthCheckRequest.FromString(serialized).service)
    except DecodeError:
        call.fail(grpc.StatusCode.INVALID_ARGUMENT, "the request is no HealthCheckRequest")
        return None
