"""Server reflection, e.g. for grpcurl; off by default."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, ReflectionServicer

from lengthwise.errors import ScoringError
from scoring_service.proto.status import CODE_OF
from scoring_service.server.call_lifecycle import parse
from scoring_service.server.oip import POOL
from scoring_service.server.security import BearerTokens
from scoring_service.transport.limits import BlockedCalls

MAX_CALLS: Final = 4
"""Calls at once; a further call ends the one that was silent longest."""
_IDLE_S: Final = 300.0
"""Longest silence of a client."""


class _Pools:
    def __getattr__(self, name: str) -> Any:
        def find(*key: object) -> Any:
            try:
                return getattr(descriptor_pool.Default(), name)(*key)
            except KeyError:
                return getattr(POOL, name)(*key)

        return find


class Reflection:
    """Handler of `grpc.reflection.v1alpha.ServerReflection` for services by their full names."""

    def __init__(self, services: Sequence[str], tokens: BearerTokens | None) -> None:
        self._tokens = tokens
        self._servicer = ReflectionServicer((*services, SERVICE_NAME), pool=_Pools())
        self.silent: BlockedCalls[grpc.ServicerContext] = BlockedCalls(
            lambda context: context.cancel(), timeout_s=_IDLE_S, max_calls=MAX_CALLS
        )
        """Calls by their last request."""

    def handlers(self) -> grpc.GenericRpcHandler:
        # Without a deserializer: grpcio never ends the thread of a call that it cannot parse.
        call = grpc.stream_stream_rpc_method_handler(
            self._answer, response_serializer=lambda message: message.SerializeToString()
        )
        return grpc.method_handlers_generic_handler(SERVICE_NAME, {"ServerReflectionInfo": call})

    def _answer(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[Message]:
        def parsed() -> Iterator[Message]:
            self.silent.add(context)
            for request in requests:
                self.silent.add(context)
                yield parse(reflection_pb2.ServerReflectionRequest, request)

        try:
            if self._tokens is not None:
                self._tokens.check(context.invocation_metadata())
            yield from self._servicer.ServerReflectionInfo(parsed(), context)
        except ScoringError as error:
            context.abort(CODE_OF[type(error)], str(error))
        finally:
            self.silent.remove(context)
