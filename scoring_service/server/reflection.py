"""Server reflection: `grpcurl` and other tools read the services and messages from the server.

Versions v1 and v1alpha of the protocol are equal on the wire; tools try v1 first.
"""

from collections.abc import Iterable
from typing import Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

from scoring_service.transport.streams import DirectStream

PATHS: Final = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1", "v1alpha")
)
_MAX_REQUEST_BYTES: Final = 1024
"""Longest request: it names a symbol or a file, and the answer repeats it."""


class Reflection:
    """Descriptions of the services in these files."""

    def __init__(self, files: Iterable[FileDescriptor]) -> None:
        # The Open Inference Protocol is not in the default pool.
        self._pool, self._files = DescriptorPool(), set[str]()
        files = [*files, reflection_pb2.DESCRIPTOR]
        for file in files:
            self._add(file)
        names = [one.full_name for file in files for one in file.services_by_name.values()]
        self._servicer = reflection.ReflectionServicer(names, self._pool)

    def answer(self, call: DirectStream, serialized: bytes) -> None:
        """Answer one request of a stream, then receive the next one."""
        if len(serialized) > _MAX_REQUEST_BYTES:
            raise DecodeError(f"{len(serialized)} bytes")
        request = reflection_pb2.ServerReflectionRequest.FromString(serialized)
        (response,) = self._servicer.ServerReflectionInfo(iter([request]), None)
        call.send(response.SerializeToString(), call.receive)

    def _add(self, file: FileDescriptor) -> None:
        if file.name not in self._files:
            self._files.add(file.name)
            for needed in file.dependencies:
                self._add(needed)
            self._pool.AddSerializedFile(file.serialized_pb)
