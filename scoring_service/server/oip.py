"""The Open Inference Protocol, so that clients of Triton, KServe and MLServer work unchanged.

One model, named as the bundle; input "text" BYTES [N], output "score" FP32 [N] (higher = longer).
The protocol knows no error per item: if one prompt cannot be scored, the call fails.
"""

import math
import struct
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from scoring_service.errors import InvalidPrompt, ScoringError
from scoring_service.server.calls import Calls, Context

SERVICE: Final = "inference.GRPCInferenceService"
INPUT: Final = "text"
OUTPUT: Final = "score"


def _load_messages() -> dict[str, Any]:
    """Message classes by name, from a pool of their own.

    The default pool belongs to a client of the protocol that may live in this process.
    """
    serialized = (files("scoring_service.proto") / "open_inference.desc").read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(serialized).file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{message.name}")
        )
        for message in file.message_type
    }


MESSAGES: Final = _load_messages()


class OpenInference:
    """The handlers of `inference.GRPCInferenceService`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._service = calls.service

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers to add to a server."""
        calls = {
            "ServerLive": lambda *_: MESSAGES["ServerLiveResponse"](live=True),
            "ServerReady": lambda *_: MESSAGES["ServerReadyResponse"](ready=True),
            "ServerMetadata": lambda *_: MESSAGES["ServerMetadataResponse"](
                name="lengthwise", version="1"
            ),
            "ModelReady": lambda request, _: MESSAGES["ModelReadyResponse"](
                ready=self._serves(request.name, request.version)
            ),
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {n: self._calls.unary(call, MESSAGES[f"{n}Request"]) for n, call in calls.items()},
        )

    def _model_metadata(self, request: Any, context: Context) -> Message:
        self._check_model(request.name, request.version)
        response = MESSAGES["ModelMetadataResponse"](
            name=self._name, versions=[self._revision], platform="onnxruntime_onnx"
        )
        response.inputs.add(name=INPUT, datatype="BYTES", shape=[-1])
        response.outputs.add(name=OUTPUT, datatype="FP32", shape=[-1])
        return response

    def _model_infer(self, request: Any, context: Context) -> Message:
        self._check_model(request.model_name, request.model_version)
        prompts = _prompts(request)
        answer = self._calls.score(prompts, "", self._calls.caller_of(context))
        scores = []
        for item in answer.items:
            if isinstance(item, ScoringError):
                raise item
            scores.append(item.score)
        response = MESSAGES["ModelInferResponse"](
            model_name=self._name,
            model_version=answer.revision,
            id=request.id,
            raw_output_contents=[struct.pack(f"<{len(scores)}f", *scores)],
        )
        response.outputs.add(name=OUTPUT, datatype="FP32", shape=[len(scores)])
        return response

    def _serves(self, name: str, version: str) -> bool:
        return name == self._name and version in ("", self._revision)

    def _check_model(self, name: str, version: str) -> None:
        if not self._serves(name, version):
            raise InvalidPrompt(
                f"no model {name!r} version {version!r}; this service has {self._name!r} "
                f"version {self._revision!r}"
            )

    @property
    def _name(self) -> str:
        return self._service.model.manifest.name

    @property
    def _revision(self) -> str:
        return self._service.model.revision


def _prompts(request: Any) -> list[str]:
    """The texts of a ModelInferRequest, in either of the protocol's two encodings."""
    if len(request.inputs) != 1 or request.inputs[0].datatype != "BYTES":
        names = [f"{tensor.name} {tensor.datatype}" for tensor in request.inputs]
        raise InvalidPrompt(f"the inputs are {names}; send one, {INPUT} BYTES [N]")
    if request.raw_input_contents:
        elements = list(_length_prefixed(b"".join(request.raw_input_contents)))
    else:
        elements = list(request.inputs[0].contents.bytes_contents)
    shape = list(request.inputs[0].shape)
    if math.prod(shape) != len(elements):
        raise InvalidPrompt(f"shape {shape} does not fit {len(elements)} texts; make them agree")
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError as error:
        raise InvalidPrompt(f"a text is not UTF-8 ({error}); send UTF-8") from error


def _length_prefixed(raw: bytes) -> Iterator[bytes]:
    """BYTES elements: each a 4-byte little-endian length and that many bytes."""
    start = 0
    while start < len(raw):
        (size,) = struct.unpack_from("<I", raw.ljust(start + 4, b"\0"), start)
        end = start + 4 + size
        if end > len(raw):
            raise InvalidPrompt(f"a text of {size} bytes is cut off; send whole elements")
        yield raw[start + 4 : end]
        start = end
