"""Regenerate the stubs from `scoring.proto`: `python -m scoring_service.proto.generate`.

Generated code refuses a protobuf or grpcio older than the one that generated it, so the floors of
both in pyproject.toml are those of the grpcio-tools that ran this.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PROTO = "scoring_service/proto/scoring.proto"
ROOT = Path(__file__).resolve().parents[2]


def generate(out: Path) -> None:
    """Write the stubs of `scoring.proto` under `out`, at the path of their package.

    Raises:
        RuntimeError: protoc failed; it has printed why.
    """
    from google.rpc import status_pb2
    from grpc_tools import protoc

    googleapis = Path(status_pb2.__file__).parents[2]
    includes = [ROOT, files("grpc_tools") / "_proto", googleapis]
    arguments = [
        "protoc",
        *(f"-I{path}" for path in includes),
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        PROTO,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc could not generate {PROTO}; its message is above")


if __name__ == "__main__":
    generate(ROOT)
