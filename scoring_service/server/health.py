"""The standard health service, `grpc.health.v1.Health`, on the thread that serves all calls."""

import threading
from collections.abc import Iterable
from functools import partial
from typing import Final

import grpc
from grpc_health.v1 import health_pb2

from scoring_service.transport.direct import DirectCall
from scoring_service.transport.streams import DirectStream

SERVICE: Final = "grpc.health.v1.Health"
_KINDS: Final = health_pb2.HealthCheckResponse


class Health:
    """Health of a server, the same for all of its services, given by their full names."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._lock = threading.Lock()
        self._is_serving = self._has_ended = False
        self._watches: dict[DirectStream, str] = {}
        """Open watches with their services."""

    def set_serving(self, is_serving: bool) -> None:
        """State whether the server serves; a change is sent to all watches."""
        with self._lock:
            has_changed, self._is_serving = is_serving != self._is_serving, is_serving
            for call, service in self._watches.items() if has_changed else ():
                if service in self._services:
                    call.send(self._status(service))

    def check(self, call: DirectCall, serialized: bytes) -> None:
        """Answer SERVING or NOT_SERVING."""
        service = _service_in(serialized)
        if service in self._services:
            call.respond(self._status(service))
        else:
            call.fail(grpc.StatusCode.NOT_FOUND, f"no service {service!r:.80} here")

    def watch(self, call: DirectStream, serialized: bytes) -> None:
        """Send the status of a service now and at each change."""
        service = _service_in(serialized)
        with self._lock:
            if not self._has_ended:
                self._watches[call] = service
                call.on_cancel = partial(self._forget, call)
                call.send(self._status(service))
                return
        _end(call)

    def end_watches(self) -> None:
        """End all watches, and later ones at once; for the end of the server."""
        with self._lock:
            self._has_ended = True
            ended, self._watches = self._watches, {}
        for call in ended:
            _end(call)

    def _forget(self, call: DirectStream) -> None:
        with self._lock:
            self._watches.pop(call, None)
        call.fail(grpc.StatusCode.CANCELLED, "the client has ended its watch")

    def _status(self, service: str) -> bytes:
        status = _KINDS.SERVING if self._is_serving else _KINDS.NOT_SERVING
        if service not in self._services:
            status = _KINDS.SERVICE_UNKNOWN
        return bytes(_KINDS(status=status).SerializeToString())


def _service_in(serialized: bytes) -> str:
    return str(health_pb2.HealthCheckRequest.FromString(serialized).service)


def _end(call: DirectStream) -> None:
    call.fail(grpc.StatusCode.UNAVAILABLE, "the server ends; watch another one")
