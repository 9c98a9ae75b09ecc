"""The standard health service, `grpc.health.v1.Health`, on the thread that serves all calls.

Check only: clients of a service without Watch take it as healthy, and watches hold places.
"""

from collections.abc import Iterable
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from scoring_service.transport.direct import DirectCall

SERVICE: Final = "grpc.health.v1.Health"


class Health:
    """Health of a server, the same for all of its services, given by their full names."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self.is_serving = False

    def check(self, call: DirectCall, serialized: bytes) -> None:
        """Answer SERVING or NOT_SERVING."""
        try:
            service = health_pb2.HealthCheckRequest.FromString(serialized).service
        except DecodeError:
            call.fail(grpc.StatusCode.INVALID_ARGUMENT, "the request is no HealthCheckRequest")
            return
        if service not in self._services:
            call.fail(grpc.StatusCode.NOT_FOUND, f"no service {service!r:.80} here")
            return
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if self.is_serving else kinds.NOT_SERVING
        call.respond(kinds(status=status).SerializeToString())
