"""A table of commands, and one line and an exit code for every failure."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from lengthwise.command_line import program
from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """One argument and one option."""

    recipe: str = field(metadata=POSITIONAL)
    batch_size: int = 8


def fit(options: FitOptions) -> int:
    """Print the options."""
    print(options)
    return options.batch_size


@pytest.mark.parametrize("words", [["--help"], ["score", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_early_ends_a_command_in_silence(words, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "scoring_service", *words]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment)
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode in (0, 128 + signal.SIGPIPE)  # argparse itself ignores what breaks


def test_a_pipe_of_another_kind_that_breaks_is_an_error():
    def run() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        program.exit_code_of(run)


def plain(arguments: Sequence[str]) -> int:
    print(list(arguments))
    return len(arguments)


def nothing() -> None:
    raise ConfigError("it is broken; mend it")


def absent() -> None:
    import a_library_that_is_not_there.part  # noqa: F401


COMMANDS = {
    "fit": (f"{__name__}:fit", "train something"),
    "plain": (f"{__name__}:plain", "reads its own arguments"),
    "nothing": (f"{__name__}:nothing", "fails"),
    "absent": (f"{__name__}:absent", "needs a library that is not there"),
}
PROGRAM = program.Program(
    module="tests",
    title="Tests",
    about="Test commands.",
    commands=COMMANDS,
    extra="serve",
    extras={"absent": "collect"},
)


def run(*arguments: str) -> int:
    return PROGRAM.run(arguments)


def test_the_table_of_commands_is_the_help(capsys):
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert "fit      train something" in text
    assert run() == 2


def test_a_command_gets_dataclasses_or_its_arguments(capsys):
    assert run("fit", "demo", "--batch-size", "5") == 5
    assert "recipe='demo'" in capsys.readouterr().out
    assert run("plain", "a", "--b") == 2
    assert capsys.readouterr().out == "['a', '--b']\n"


def test_an_unknown_command_and_an_error_of_ours_are_one_line(capsys):
    assert run("fitt") == 2
    assert capsys.readouterr().err == "error: no command named 'fitt'; use fit\n"
    assert run("bs") == 2
    assert capsys.readouterr().err == "error: no command named 'bs'; use absent\n"
    assert run("xyz") == 2
    assert capsys.readouterr().err == (
        "error: no command named 'xyz'; use one of fit, plain, nothing, absent\n"
    )
    assert run("nothing") == 2
    assert capsys.readouterr().err == "error: it is broken; mend it\n"


def test_a_missing_library_is_one_line_that_names_the_extra(capsys):
    assert run("absent") == 2
    assert capsys.readouterr().err == (
        "error: absent needs a_library_that_is_not_there, which is not installed; "
        "pip install 'lengthwise[collect]'\n"
    )


def test_commands_are_named_as_they_are_typed(monkeypatch, capsys):
    own = "python -m tests plain --help and python -m tests.tool"
    monkeypatch.setattr("lengthwise.command_line.program.programs", lambda: {"tests": PROGRAM})
    assert program.as_typed(own) == own
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lengthwise", "fit"])
    assert program.as_typed(own) == "lengthwise plain --help and python -m tests.tool"
    program.print_next("python -m tests fit --out x", "python -m other fit")
    assert capsys.readouterr().out == "next: lengthwise fit --out x\nnext: python -m other fit\n"


def test_ctrl_c_and_a_full_disk_are_one_line(capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "out.json")

    def other() -> None:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    assert program.run_command("tests", interrupted, []) == program.INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert program.run_command("tests", full, []) == 2
    assert "out.json cannot be written (No space left on device)" in capsys.readouterr().err
    with pytest.raises(ConnectionResetError):
        program.run_command("tests", other, [])


def test_an_error_with_control_characters_is_one_printable_line(capsys):
    def fail():
        raise ConfigError("of a\n  foreign\tlibrary \x1b[31mred")

    assert program.exit_code_of(fail) == 2
    assert capsys.readouterr().err == "error: of a foreign library \\x1b[31mred\n"
