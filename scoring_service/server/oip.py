"""The Open Inference Protocol: clients of Triton, KServe and MLServer work unchanged.

One model, named as the bundle; input "text" BYTES [N] or [N, 1], output "score" FP32 of the same
shape (higher = longer). Other inputs and outputs are refused. The protocol has no error per item:
if one prompt cannot be scored, the call fails.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from lengthwise.errors import InvalidPrompt, ScoringError, raised_as
from scoring_service.server.call_lifecycle import Method, PromptRequest
from scoring_service.service.scoring import CallAnswer, ScoringService

SERVICE: Final = "inference.GRPCInferenceService"
INPUT: Final = "text"
OUTPUT: Final = "score"


def _load_messages() -> dict[str, Any]:
    serialized = (files("scoring_service.proto") / "open_inference.desc").read_bytes()
    described = descriptor_pb2.FileDescriptorSet.FromString(serialized)
    # A client of the protocol in this process uses the default pool.
    kinds = message_factory.GetMessages(described.file, pool=descriptor_pool.DescriptorPool())
    return {kind.DESCRIPTOR.name: kind for kind in kinds.values()}


MESSAGES: Final = _load_messages()
FILE: Final = MESSAGES["ModelInferRequest"].DESCRIPTOR.file
"""Description of the protocol, in a pool of its own."""


class OpenInference:
    """Methods of `inference.GRPCInferenceService`."""

    def __init__(self, service: ScoringService) -> None:
        self._service = service

    def methods(self) -> dict[str, Method]:
        readers = {
            "ServerLive": lambda _: MESSAGES["ServerLiveResponse"](live=True),
            "ServerReady": lambda _: MESSAGES["ServerReadyResponse"](ready=True),
            "ServerMetadata": lambda _: MESSAGES["ServerMetadataResponse"](
                name="lengthwise", version="1"
            ),
            "ModelReady": lambda request: MESSAGES["ModelReadyResponse"](
                ready=self._serves(request.name, request.version)
            ),
            "ModelMetadata": self._model_metadata,
        }
        methods = {name: Method(MESSAGES[f"{name}Request"], f) for name, f in readers.items()}
        return methods | {"ModelInfer": Method(MESSAGES["ModelInferRequest"], self._read, 0)}

    def _model_metadata(self, request: Any) -> Message:
        self._check_model(request.name, request.version)
        model = self._service.model
        return MESSAGES["ModelMetadataResponse"](
            name=model.manifest.name,
            versions=[model.revision],
            platform="onnxruntime_onnx",
            inputs=[{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
            outputs=[{"name": OUTPUT, "datatype": "FP32", "shape": [-1]}],
        )

    def _read(self, request: Any) -> PromptRequest:
        self._check_model(request.model_name, request.model_version)
        outputs = [tensor.name for tensor in request.outputs]
        if outputs not in ([], [OUTPUT]):
            raise InvalidPrompt(
                f"the requested outputs are {outputs!r:.200}; there is one, {OUTPUT}"
            )
        shape = list(request.inputs[0].shape) if request.inputs else []
        return PromptRequest(_prompts(request), "", partial(self._response, request.id, shape))

    def _response(self, request_id: str, shape: Sequence[int], answer: CallAnswer) -> Message:
        scores = []
        for item in answer.items:
            if isinstance(item, ScoringError):
                raise item
            scores.append(item.score)
        return MESSAGES["ModelInferResponse"](
            model_name=self._service.model.manifest.name,
            model_version=answer.revision,
            id=request_id,
            outputs=[{"name": OUTPUT, "datatype": "FP32", "shape": shape}],
            raw_output_contents=[struct.pack(f"<{len(scores)}f", *scores)],
        )

    def _serves(self, name: str, version: str) -> bool:
        model = self._service.model
        return name == model.manifest.name and version in ("", model.revision)

    def _check_model(self, name: str, version: str) -> None:
        if not self._serves(name, version):
            model = self._service.model
            raise InvalidPrompt(
                f"no model {name!r} version {version!r}; this service has {model.manifest.name!r} "
                f"version {model.revision!r}"
            )


def _prompts(request: Any) -> list[str]:
    names = [f"{tensor.name} {tensor.datatype}" for tensor in request.inputs]
    if names != [f"{INPUT} BYTES"]:
        raise InvalidPrompt(f"the inputs are {names!r:.200}; send one, {INPUT} BYTES [N]")
    given = list(request.inputs[0].contents.bytes_contents)
    if request.raw_input_contents:
        if given or len(request.raw_input_contents) != 1:
            raise InvalidPrompt("the texts are there twice; send them either raw or as contents")
        given = list(_length_prefixed(request.raw_input_contents[0]))
    shape = list(request.inputs[0].shape)
    if shape not in ([len(given)], [len(given), 1]):
        raise InvalidPrompt(
            f"shape {shape!r:.80} is not that of {len(given)} texts; send [{len(given)}]"
        )
    with raised_as(InvalidPrompt, "a text is not UTF-8 ({}); send UTF-8", UnicodeDecodeError):
        return [element.decode() for element in given]


def _length_prefixed(raw: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(raw):
        (size,) = struct.unpack_from("<I", raw.ljust(start + 4, b"\0"), start)
        end = start + 4 + size
        if end > len(raw):
            raise InvalidPrompt(f"a text of {size} bytes is cut off; send whole elements")
        yield raw[start + 4 : end]
        start = end
