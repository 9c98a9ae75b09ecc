"""Server reflection, for grpcurl and its like; off unless it is asked for."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, ReflectionServicer

from lengthwise.errors import ScoringError
from scoring_service.proto.status import abort
from scoring_service.server.call_lifecycle import Context, parse, serialize, told_of
from scoring_service.server.oip import POOL
from scoring_service.transport.blocked_calls import Waiting

MAX_CALLS: Final = 4
"""Beyond which the one that was silent longest is ended."""


class _Pools:
    """Looks descriptors up in the default pool, then in that of the Open Inference Protocol."""

    def __getattr__(self, name: str) -> Any:
        def find(*key: object) -> Any:
            try:
                return getattr(descriptor_pool.Default(), name)(*key)
            except KeyError:
                return getattr(POOL, name)(*key)

        return find


class Reflection:
    """The handler of `grpc.reflection.v1alpha.ServerReflection`.

    Args:
        services: full names of the services to list.
        idle_s: after which a silent client is cut off.
    """

    def __init__(self, services: Sequence[str], idle_s: float) -> None:
        names = (*services, SERVICE_NAME)
        self._servicer = ReflectionServicer(names, pool=_Pools())
        self.waiting: Waiting[Context] = Waiting(
            lambda context: context.cancel(), timeout_s=idle_s, max_waiting=MAX_CALLS
        )
        """Calls by their last request."""

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers to add to a server."""
        # Without a deserializer: grpcio never ends the thread of a call that it cannot parse.
        call = grpc.stream_stream_rpc_method_handler(self._answer, response_serializer=serialize)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, {"ServerReflectionInfo": call})

    def _answer(self, requests: Iterator[bytes], context: Context) -> Iterator[Message]:
        def parsed() -> Iterator[Message]:
            self.waiting.enter(context)
            for request in requests:
                self.waiting.enter(context)
                yield parse(reflection_pb2.ServerReflectionRequest, request)

        try:
            yield from self._servicer.ServerReflectionInfo(parsed(), context)
        except ScoringError as error:
            abort(context, told_of("reflection", error))
        finally:
            self.waiting.leave(context)
