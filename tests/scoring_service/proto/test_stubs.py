"""The committed stubs are what the .proto files generate; `--regen-golden` writes them anew.

Generated code refuses an older protobuf or grpcio than its generator's. So pyproject.toml requires
at least the versions of both that belong to the grpcio-tools in use.
"""

from importlib.resources import files
from pathlib import Path

import pytest
from google.rpc import status_pb2

FOLDER = Path("scoring_service/proto")
PICKER = Path("scheduler_adapters/routers/endpoint_picker")
ROOT = Path(__file__).resolve().parents[3]


def test_the_stubs_match_the_proto(tmp_path, request):
    protoc = pytest.importorskip("grpc_tools.protoc")
    out = ROOT if request.config.getoption("--regen-golden") else tmp_path
    for folder in (FOLDER, PICKER):
        (out / folder).mkdir(parents=True, exist_ok=True)
    includes = [ROOT, files("grpc_tools") / "_proto", Path(status_pb2.__file__).parents[2]]
    stubs = [f"--{plugin}_out={out}" for plugin in ("python", "pyi", "grpc_python")]
    descriptors = [f"--descriptor_set_out={out / FOLDER / 'open_inference.desc'}"]
    made_by = {FOLDER / "scoring.proto": stubs, FOLDER / "open_inference.proto": descriptors}
    for path, outputs in (made_by | {PICKER / "ext_proc.proto": stubs[:2]}).items():
        arguments = ["protoc", *(f"-I{path}" for path in includes), *outputs, str(path)]
        assert protoc.main(arguments) == 0
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.*"))
    assert len(made) == 6 or out == ROOT
    for path in made:
        assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes(), f"regenerate {path}"
