"""The command line, as a user runs it: in its own process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scoring_service.__main__ import main
from scoring_service.bundle import FP32
from scoring_service.client import ScoringClient

COMMAND = [sys.executable, "-m", "scoring_service"]


@contextmanager
def serving(bundle, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its HOST:PORT."""
    arguments = ["serve", "--bundle", str(bundle.path), "--address", "127.0.0.1:0", *options]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith(f"serving tiny revision {bundle.manifest.revision} on 127.0.0.1:")
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_until_it_is_told_to_stop_and_exits_0(tiny_bundle, stop):
    with serving(tiny_bundle) as (process, target):
        with ScoringClient(target, timeout_s=60) as client:
            assert client.score("long essay").value > client.score("yes").value
        process.send_signal(stop)
        assert process.wait(60) == 0


def test_the_score_command_prints_one_json_object(tiny_bundle, capsys):
    with serving(tiny_bundle) as (_, target):
        assert main(["score", "--target", target, "--json", "yes", "long essay"]) == 0
    rows = json.loads(capsys.readouterr().out)["scores"]
    assert [row["prompt"] for row in rows] == ["yes", "long essay"]
    assert rows[0]["value"] < rows[1]["value"]


def test_a_prompt_without_a_score_is_named_and_costs_the_others_nothing(server, capsys):
    arguments = ["score", "--target", server.target, "--timeout-s", "60"]
    assert main([*arguments, "yes", "", "long essay"]) == 2
    output = capsys.readouterr()
    columns = [line.split("\t") for line in output.out.splitlines()]
    assert [prompt for _, prompt in columns] == ["yes", "", "long essay"]
    assert float(columns[0][0]) < float(columns[2][0])
    assert columns[1][0] == "-"
    assert "prompt 2 of 3" in output.err
    assert main([*arguments, "--json", "yes", ""]) == 2
    good, bad = json.loads(capsys.readouterr().out)["scores"]
    assert good["value"] == pytest.approx(float(columns[0][0]), abs=1e-4)
    assert "empty" in bad["error"]


def test_the_score_command_prints_the_tokens_of_a_target_model(server, capsys):
    arguments = ["score", "--target", server.target, "--timeout-s", "60", "--target-model"]
    assert main([*arguments, "tiny-llm", "no", "long essay"]) == 0
    columns = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [prompt for _, _, prompt in columns] == ["no", "long essay"]
    assert 0 < int(columns[0][1]) < int(columns[1][1])
    assert "gpt-9" in fails(capsys, *arguments, "gpt-9", "no", "long essay")


def test_an_interrupted_command_says_so_in_one_line(monkeypatch, capsys):
    def interrupt(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scoring_service.commands.score.ScoringClient", interrupt)
    assert main(["score", "yes"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_service_process_imports_no_training_framework(tiny_bundle):
    program = (
        "import sys; from scoring_service import __main__, bundle\n"
        "from scoring_service.ranker import model; from scoring_service.server import server\n"
        f"model.RankerModel.load(bundle.ModelBundle.load({str(tiny_bundle.path)!r}))\n"
        "print(sorted({'torch', 'transformers', 'lightning', 'mlflow'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


def test_the_client_process_imports_no_model_runtime():
    program = (
        "import sys, scoring_service.client, scoring_service.bundle\n"
        "print(sorted({'torch', 'onnxruntime', 'tokenizers', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


def fails(capsys, *arguments: str) -> str:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    return output.err


def test_a_missing_bundle_is_one_clear_line(capsys, tmp_path):
    assert "python -m training fit" in fails(capsys, "serve", "--bundle", str(tmp_path / "none"))


def test_a_damaged_bundle_is_one_clear_line(capsys, tiny_bundle, tmp_path):
    copy = tmp_path / "bundle"
    copy.mkdir()
    for path in tiny_bundle.path.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / FP32).write_bytes(b"x")
    assert "damaged" in fails(capsys, "serve", "--bundle", str(copy))


def test_a_port_in_use_is_one_clear_line(capsys, tiny_bundle):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        error = fails(capsys, "serve", "--bundle", str(tiny_bundle.path), "--address", address)
    assert address in error


@pytest.mark.parametrize(
    "option", ["--precision=fp64", "--address=nowhere", "--max-batch-prompts=0", "--num-runners=-1"]
)
def test_a_wrong_setting_is_one_clear_line(capsys, tiny_bundle, option):
    name = option.removeprefix("--").partition("=")[0].replace("-", "_")
    assert name in fails(capsys, "serve", "--bundle", str(tiny_bundle.path), option)


def test_no_service_is_one_clear_line(capsys):
    error = fails(capsys, "score", "--target", "127.0.0.1:1", "--timeout-s", "60", "hello")
    assert "127.0.0.1:1" in error


def test_help_teaches(capsys):
    assert main(["--help"]) == 0
    for arguments in (["serve", "--help"], ["score", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    text = capsys.readouterr().out
    assert "python -m scoring_service serve --bundle" in text
    assert "bytes" in text
