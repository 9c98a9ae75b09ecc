"""The commands of `python -m scoring_service`, and what their processes import."""

import subprocess
import sys

import pytest

from scoring_service.__main__ import main

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


def test_help_teaches(capsys):
    assert main(["--help"]) == 0
    for arguments in (["serve", "--help"], ["score", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    text = capsys.readouterr().out
    assert "python -m scoring_service serve --bundle" in text
    assert "bytes" in text
