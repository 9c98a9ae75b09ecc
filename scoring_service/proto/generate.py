"""Generate stubs and descriptors from the .proto files: `python -m scoring_service.proto.generate`.

Generated code refuses an older protobuf or grpcio than its generator's. So pyproject.toml requires
at least the versions of both that belong to the grpcio-tools in use.
"""

from importlib.resources import files
from pathlib import Path

FOLDER = "scoring_service/proto"
ROOT = Path(__file__).resolve().parents[2]


def generate(out: Path) -> None:
    """Write stubs of `scoring.proto` and descriptors of `open_inference.proto` under `out`."""
    from google.rpc import status_pb2
    from grpc_tools import protoc

    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    includes = [ROOT, files("grpc_tools") / "_proto", Path(status_pb2.__file__).parents[2]]
    stubs = [f"--{plugin}_out={out}" for plugin in ("python", "pyi", "grpc_python")]
    descriptors = [f"--descriptor_set_out={out / FOLDER / 'open_inference.desc'}"]
    for name, outputs in (("scoring.proto", stubs), ("open_inference.proto", descriptors)):
        arguments = ["protoc", *(f"-I{path}" for path in includes), *outputs, f"{FOLDER}/{name}"]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"protoc could not compile {name}; its message is above")


if __name__ == "__main__":
    generate(ROOT)
