"""`lengthwise`: all commands on one page, under names of their own, with short help."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from lengthwise import __main__ as lengthwise
from lengthwise.__main__ import by_name, main
from lengthwise.command_line import program as command_line
from scheduler_adapters.__main__ import PROGRAM as SCHEDULERS
from scoring_service.__main__ import PROGRAM as SCORES
from training.__main__ import PROGRAM as RANKERS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"training": RANKERS, "scoring_service": SCORES, "scheduler_adapters": SCHEDULERS}
NAMED = by_name(PROGRAMS.values())
_MAX_LINES = 40


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The programs as this checkout has them, whatever is installed; called as `lengthwise`."""
    for module in (command_line, lengthwise):
        monkeypatch.setattr(module, "programs", lambda: PROGRAMS)
    monkeypatch.setattr(sys, "argv", ["lengthwise"])


def help_of(name: str, word: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="0"):
        main([name, word])
    return capsys.readouterr().out


def options_of(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-h, )?(--[\w.-]+)", text, flags=re.M))


def test_the_page_names_every_command_once_in_three_groups(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    groups = [text.index(program.title + "\n") for program in PROGRAMS.values()]
    assert groups == sorted(groups)
    for name in NAMED:
        assert len(re.findall(rf"^  {name}  ", text, flags=re.M)) == 1
    assert main([]) == 2


def test_the_version_is_that_of_the_project(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lengthwise {version('lengthwise')}\n"


def test_a_policy_in_the_current_folder_is_found(tmp_path):
    (tmp_path / "my_policy.py").write_text("from scheduler_adapters.policies.fcfs import FCFS\n")
    script = (
        f"import sys; sys.path[0] = {str(ROOT)!r}; from lengthwise.__main__ import main; main()"
    )
    asked = ["simulate", "--policy", "my_policy:FCFS", "--num-requests", "9", "--json"]
    run = subprocess.run([sys.executable, "-c", script, *asked], cwd=tmp_path, capture_output=True)
    assert json.loads(run.stdout)["num_finished"] == 9


def test_the_project_declares_the_command_and_these_programs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["lengthwise"].partition(":")
    assert getattr(import_module(module), function) is main
    points = project["entry-points"][command_line.ENTRY_POINTS]
    assert points == {module: f"{module}.__main__:PROGRAM" for module in PROGRAMS}
    extras = project["optional-dependencies"]
    for program in PROGRAMS.values():
        assert {program.extra, *program.extras.values()} <= extras.keys()
        assert {*program.extras} <= program.commands.keys()


@pytest.mark.parametrize("name", NAMED)
def test_short_help_fits_on_a_screen_and_is_in_the_whole_help(name, capsys):
    short, whole = help_of(name, "--help", capsys), help_of(name, "--help-all", capsys)
    usage = short.splitlines()[0]
    assert usage.startswith(f"usage: lengthwise {name}")
    assert len(short.splitlines()) <= _MAX_LINES
    assert not re.search(r"--[a-z]+_", short)
    assert len(re.findall(r"^  (--[\w.-]+|[A-Z]+(?=  ))", short, flags=re.M)) <= 10
    assert set(re.findall(r"(?<= )--[\w-]+", usage)) <= options_of(short)
    assert options_of(short) - {"--help"} <= options_of(whole)
    hidden = options_of(whole) - options_of(short) - {"--help-all"}
    are_hidden = any(f" {option[2:].upper()}" not in usage for option in hidden)
    assert ("--help-all shows all" in short) == are_hidden


def test_help_imports_no_framework_nor_the_modules_of_commands():
    """Starting takes a tenth of a second, of which importing command modules would be most."""
    program = """
import contextlib, io, sys
from importlib import import_module
from lengthwise.__main__ import main
main(["--help"])
heavy = {"torch", "grpc", "numpy", "pandas", "jsonargparse", "onnxruntime"}
print(sorted(heavy & set(sys.modules)))
programs = [import_module(name + ".__main__").PROGRAM for name in sys.argv[1:]]
for program in programs:
    for name in program.commands:
        program.command(name)
for name in ("fit", "predict"):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        programs[0].run([name, "--help"])
heavy = {"torch", "lightning", "transformers", "mlflow", "vllm", "sklearn", "numba"}
print(sorted(heavy & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program, *PROGRAMS], capture_output=True, text=True)
    assert run.stdout.splitlines()[-2:] == ["[]", "[]"], run.stderr


def test_tab_completes_commands_options_and_choices(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "complete.sh").write_text(capsys.readouterr().out)
    asked = {
        "lengthwise comp": "compare completion",
        "lengthwise fit --data.on": "--data.on-bad-rows",
        "lengthwise serve-vllm --start": "--start-without-scorer",
        "lengthwise simulate --engine ''": "plain vllm",
        "lengthwise simulate --policy pa": "pars pars-paper pascal",
        "lengthwise compare --policies fcfs sl": "slai",
        "lengthwise advise --gpu h2": "h200",
    }
    lines = ["source complete.sh"]
    for words in asked:
        lines.append(f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))")
        lines.append(
            "COMPREPLY=(); _shtab_lengthwise; printf '%s\\n' ${COMPREPLY[@]} | sort | xargs"
        )
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == list(asked.values()), done.stderr
