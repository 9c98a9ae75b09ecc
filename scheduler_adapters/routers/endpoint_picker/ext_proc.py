"""Envoy's external processing, version 3: the messages of one HTTP request, answered.

The first message names the mode. BUFFERED: the body arrives whole, and the answer to it names the
endpoint; if the picker fails, the gateway chooses itself. FULL_DUPLEX_STREAMED, the mode of the
Gateway API inference extension and of gateways that name none: headers are answered once the
endpoint is chosen, and bodies are streamed through.

Source: Endpoint Picker Protocol 1.0 (kubernetes-sigs/gateway-api-inference-extension,
docs/proposals/004-endpoint-picker-protocol).
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from lengthwise.errors import ScoringError, ServiceUnavailable
from scheduler_adapters.routers.endpoint_picker import ext_proc_pb2 as pb
from scheduler_adapters.routers.endpoint_picker.picker import EndpointPicker
from scheduler_adapters.routers.legs import Leg

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
ENDPOINT: Final = "x-gateway-destination-endpoint"
"""Header and entry of the metadata with the choice. A client's own header is overwritten."""
_SUBSET: Final = f"{ENDPOINT}-subset"
_DUPLEX: Final = pb.ProtocolConfiguration(
    request_body_mode=pb.FULL_DUPLEX_STREAMED, response_body_mode=pb.FULL_DUPLEX_STREAMED
)
_MAX_BODIES: Final = 64
"""Longest bodies that are held at once; beyond, each body is a long one."""
_BUFFERED: Final = (pb.BUFFERED, pb.BUFFERED_PARTIAL)


class ExternalProcessor:
    """The service: one stream of messages per HTTP request."""

    def __init__(self, picker: EndpointPicker) -> None:
        self.picker = picker
        self.held_bytes = 0
        """Bytes of all bodies read before their choice."""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a server of `grpc.aio`."""
        method = grpc.stream_stream_rpc_method_handler(
            self.process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})

    async def process(
        self, messages: AsyncIterator[pb.ProcessingRequest], context: Any
    ) -> AsyncIterator[pb.ProcessingResponse]:
        """Answer the messages of one HTTP request until its stream ends."""
        exchange = _Exchange(self)
        try:
            async for message in messages:
                for answer in await exchange.answers(message):
                    yield answer
        except ScoringError as error:
            yield _refusal(error)
        finally:
            exchange.close()


class _Exchange:
    """State of one HTTP request."""

    def __init__(self, processor: ExternalProcessor) -> None:
        self.processor, self.picker = processor, processor.picker
        self.leg: Leg | None = None
        self.modes: pb.ProtocolConfiguration | None = None
        self.subset: list[str] | None = None
        self.parts: list[pb.HttpBody] = []
        self.num_bytes = 0

    async def answers(self, message: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        """Return the answers to a message, in order. Raises as `EndpointPicker.pick` does."""
        kind = message.WhichOneof("request")
        if self.modes is None:
            self.modes = message.protocol_config if message.HasField("protocol_config") else _DUPLEX
            self.subset = _subset_of(message)
        is_duplex = self.modes.request_body_mode == pb.FULL_DUPLEX_STREAMED
        if kind == "request_headers":
            is_all = message.request_headers.end_of_stream
            if not is_all and is_duplex:
                return []
            waits = not is_all and self.modes.request_body_mode in _BUFFERED
            return [_pass(kind) if waits else await self._choose(b"", kind)]
        if kind == "request_body" and self.leg is None:
            return await self._read(message.request_body, is_duplex)
        if kind == "request_body" and is_duplex:
            return [_streamed(kind, message.request_body)]
        if kind == "request_trailers" and self.leg is None:
            return [*await self._choose_and_stream(), _pass(kind)]
        if kind == "response_body" and self.modes.response_body_mode == pb.FULL_DUPLEX_STREAMED:
            return [_streamed(kind, message.response_body)]
        return [_pass(kind)] if kind else []

    async def _read(self, body: pb.HttpBody, is_duplex: bool) -> list[pb.ProcessingResponse]:
        """Keep a part of the body until it ends or is long."""
        self.num_bytes += len(body.body)
        self.processor.held_bytes += len(body.body)
        if not is_duplex:
            return [await self._choose(body.body, "request_body")]
        self.parts.append(body)
        most = self.picker.limits.max_body_bytes
        is_long = self.num_bytes > most or self.processor.held_bytes > _MAX_BODIES * most
        return await self._choose_and_stream() if body.end_of_stream or is_long else []

    async def _choose_and_stream(self) -> list[pb.ProcessingResponse]:
        """Answer headers and the body read so far."""
        parts, self.parts = self.parts, []
        first = await self._choose(b"".join(one.body for one in parts), "request_headers")
        return [first, *(_streamed("request_body", one) for one in parts)]

    async def _choose(self, body: bytes, kind: str) -> pb.ProcessingResponse:
        self.leg, names = await self.picker.pick(body, self.num_bytes, self.subset)
        self._let_go()
        endpoints = ",".join(names)
        header = _header(ENDPOINT, endpoints.encode())
        common = pb.CommonResponse(header_mutation=header, clear_route_cache=True)
        answer = pb.ProcessingResponse(**{kind: {"response": common}})
        answer.dynamic_metadata.update({"envoy.lb": {ENDPOINT: endpoints}})
        return answer

    def _let_go(self) -> None:
        self.processor.held_bytes -= self.num_bytes
        self.num_bytes = 0

    def close(self) -> None:
        """Release the booking and the body."""
        self._let_go()
        if self.leg is not None:
            self.picker.release(self.leg)


def _subset_of(message: pb.ProcessingRequest) -> list[str] | None:
    """Return the endpoints that the gateway allows, given as list or text; None: all."""
    hint = message.metadata_context.filter_metadata.get("envoy.lb.subset_hint")
    if hint is None or _SUBSET not in hint.fields:
        return None
    value = hint.fields[_SUBSET]
    listed = value.list_value.values if value.HasField("list_value") else [value]
    return [part.strip() for one in listed for part in one.string_value.split(",") if part.strip()]


def _pass(kind: str) -> pb.ProcessingResponse:
    return pb.ProcessingResponse(**{kind: {}})


def _streamed(kind: str, body: pb.HttpBody) -> pb.ProcessingResponse:
    part = pb.StreamedBodyResponse(body=body.body, end_of_stream=body.end_of_stream)
    common = pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=part))
    return pb.ProcessingResponse(**{kind: {"response": common}})


def _header(key: str, value: bytes) -> pb.HeaderMutation:
    header = pb.HeaderValue(key=key, raw_value=value)
    option = pb.HeaderValueOption(header=header, append_action=pb.OVERWRITE_IF_EXISTS_OR_ADD)
    return pb.HeaderMutation(set_headers=[option])


def _refusal(error: ScoringError) -> pb.ProcessingResponse:
    status = 503 if isinstance(error, ServiceUnavailable) else 429
    body = json.dumps({"error": {"message": str(error), "code": status}}).encode()
    kind = _header("content-type", b"application/json")
    answer = pb.ImmediateResponse(status={"code": status}, headers=kind, body=body)
    return pb.ProcessingResponse(immediate_response=answer)
