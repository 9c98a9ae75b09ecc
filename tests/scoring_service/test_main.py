"""The commands of `python -m scoring_service`, and what their processes import."""

import subprocess
import sys

import pytest

SERVES = (
    "from lengthwise import bundle; from scoring_service import __main__\n"
    "from scoring_service.ranker import model; from scoring_service.server import server\n"
    "model.RankerModel.load(bundle.ModelBundle.load({!r}))"
)


@pytest.mark.parametrize(
    ("program", "modules"),
    [
        (SERVES, {"torch", "transformers", "lightning", "mlflow"}),
        (
            "import scoring_service.client, lengthwise.bundle",
            {"torch", "onnxruntime", "tokenizers", "numpy"},
        ),
    ],
)
def test_service_and_client_import_no_framework_needlessly(tiny_bundle, program, modules):
    code = (
        f"{program.format(str(tiny_bundle.path))}\nimport sys; print({modules} & {{*sys.modules}})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "set()", run.stderr
