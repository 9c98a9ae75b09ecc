"""The standard health service, `grpc.health.v1.Health`, on the thread that serves all calls.

grpcio's own servicer gives each Watch a thread and holds its lock while that thread waits. A few
watchers then block the whole service. Here a watcher is an entry in a table.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from scoring_service.transport.direct import DirectCall, Handle

SERVICE: Final = "grpc.health.v1.Health"
MAX_WATCHERS: Final = 1024
"""Number of watches beyond which the oldest one ends; its client may watch again."""


@dataclass(eq=False, slots=True)
class _Watcher:
    """A Watch call: the last status sent, and the code and text of its end."""

    call: DirectCall
    service: str
    sent: int | None = None
    is_sending: bool = False
    end: tuple[grpc.StatusCode, str] | None = None
    is_over: bool = False


class Health:
    """Health of a server, the same for all of its services.

    Args:
        services: full names; "" for the server as a whole is added.
    """

    def __init__(self, services: Iterable[str], *, max_watchers: int = MAX_WATCHERS) -> None:
        self._services = frozenset(("", *services))
        self._status: int = health_pb2.HealthCheckResponse.NOT_SERVING
        self._max_watchers = max_watchers
        self._lock = threading.Lock()
        self._watchers: dict[_Watcher, None] = {}

    def methods(self) -> Mapping[str, Handle]:
        """Return the handler of each method by its name."""
        return {"Check": self._check, "Watch": self._watch}

    def set_serving(self, serving: bool) -> None:
        """Set SERVING or NOT_SERVING, and send it to all watchers."""
        kinds = health_pb2.HealthCheckResponse
        with self._lock:
            self._status = kinds.SERVING if serving else kinds.NOT_SERVING
            for watcher in self._watchers:
                self._proceed(watcher)

    def close(self) -> None:
        """End every watch: the server's own end waits for open calls."""
        with self._lock:
            while self._watchers:
                self._end_oldest(grpc.StatusCode.UNAVAILABLE, "the service stops")

    def _check(self, call: DirectCall, serialized: bytes) -> None:
        service = _service_of(call, serialized)
        if service in self._services:
            message = health_pb2.HealthCheckResponse(status=self._status)
            call.respond(message.SerializeToString())
        elif service is not None:
            call.fail(grpc.StatusCode.NOT_FOUND, f"no service {service!r:.80} here")

    def _watch(self, call: DirectCall, serialized: bytes) -> None:
        service = _service_of(call, serialized)
        if service is None:
            return
        watcher = _Watcher(call, service)
        call.on_cancel = partial(self._leave, watcher)
        with self._lock:
            self._watchers[watcher] = None
            if len(self._watchers) > self._max_watchers:
                text = f"{self._max_watchers} newer watches are open; watch again"
                self._end_oldest(grpc.StatusCode.UNAVAILABLE, text)
            self._proceed(watcher)

    # Below, all but `_leave` and `_sent` are called with the lock held.

    def _proceed(self, watcher: _Watcher) -> None:
        """Send a watcher its new status or its end; gRPC accepts one message at a time."""
        if watcher.is_sending or watcher.is_over:
            return
        if watcher.end is not None:
            watcher.is_over = True
            watcher.call.fail(*watcher.end)
            return
        is_known = watcher.service in self._services
        status = self._status if is_known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        if status != watcher.sent:
            watcher.sent, watcher.is_sending = status, True
            message = health_pb2.HealthCheckResponse(status=status)
            watcher.call.send(message.SerializeToString(), partial(self._sent, watcher))

    def _end_oldest(self, code: grpc.StatusCode, text: str) -> None:
        watcher = next(iter(self._watchers))
        del self._watchers[watcher]
        watcher.end = code, text
        self._proceed(watcher)

    def _sent(self, watcher: _Watcher) -> None:
        with self._lock:
            watcher.is_sending = False
            self._proceed(watcher)

    def _leave(self, watcher: _Watcher) -> None:
        with self._lock:
            self._watchers.pop(watcher, None)
            watcher.end = watcher.end or (grpc.StatusCode.CANCELLED, "the client has left")
            self._proceed(watcher)


def _service_of(call: DirectCall, serialized: bytes) -> str | None:
    """Return the service of a request; None for a malformed one, whose call has then failed."""
    try:
        return str(health_pb2.HealthCheckRequest.FromString(serialized).service)
    except DecodeError:
        call.fail(grpc.StatusCode.INVALID_ARGUMENT, "the request is no HealthCheckRequest")
        return None
