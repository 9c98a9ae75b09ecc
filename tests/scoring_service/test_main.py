"""The commands of `python -m scoring_service`, and what their processes import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scoring_service.__main__ import main


def test_the_service_process_imports_no_training_framework(tiny_bundle):
    program = (
        "import sys; from lengthwise import bundle; from scoring_service import __main__\n"
        "from scoring_service.ranker import model; from scoring_service.server import server\n"
        f"model.RankerModel.load(bundle.ModelBundle.load({str(tiny_bundle.path)!r}))\n"
        "print(sorted({'torch', 'transformers', 'lightning', 'mlflow'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


def test_the_client_process_imports_no_model_runtime():
    program = (
        "import sys, scoring_service.client, lengthwise.bundle\n"
        "print(sorted({'torch', 'onnxruntime', 'tokenizers', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


def test_help_teaches(capsys):
    assert main(["--help"]) == 0
    for arguments in (["serve", "--help"], ["score", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    text = capsys.readouterr().out
    assert "python -m scoring_service serve --bundle" in text
    assert "bytes" in text
