"""Options from dataclasses, a table of commands, and one line for whatever goes wrong."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from lengthwise.command_line import (
    INTERRUPTED,
    LOG_FORMATS,
    POSITIONAL,
    JsonFormatter,
    Program,
    as_typed,
    common_options,
    configure_logs,
    exit_code_of,
    parse,
    print_next,
    programs,
    run_command,
)
from lengthwise.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A nested group."""

    delta: float = 0.2
    max_gap: int = 5


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every kind of option."""

    recipe: str = field(metadata=POSITIONAL)
    """Name of the recipe."""
    prompts: list[str] = field(default_factory=list, metadata=POSITIONAL)
    loss: Loss = Loss()
    batch_size: int = 8
    """Prompts of a step, as --max_gap says."""
    lengths: list[int] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    engine: Literal["plain", "vllm"] = "plain"
    out: Path | None = None
    resume: bool = True
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class More:
    """A second dataclass of the same command."""

    token: str | None = None


def fit(options: Options, more: More) -> int:
    """Fit it.

    Example:
      python -m tests fit demo --batch_size 4
    """
    print(options)
    return options.batch_size


def read(*arguments: str) -> Options:
    found: Options = parse("python -m tests fit", fit, arguments)["options"]
    return found


def test_hyphens_underscores_dots_and_equals_signs_are_understood():
    for given in (
        ["--batch-size", "3", "--loss.max-gap=7"],
        ["--batch_size=3", "--loss.max_gap", "7"],
    ):
        options = read("demo", *given)
        assert (options.batch_size, options.loss) == (3, Loss(max_gap=7))


@pytest.mark.parametrize("words", [["16", "32"], ["[16, 32]"], ["[16,32]"]])
def test_a_list_is_words_or_json(words):
    assert read("demo", "--lengths", *words).lengths == [16, 32]


def test_words_of_a_list_may_look_like_anything():
    assert read("demo", "--columns", "a b", "3", "null").columns == ("a b", "3", "null")
    assert read("demo", "--columns=one").columns == ("one",)


def test_flags_need_no_value_and_take_one():
    assert read("demo", "--json", "--no-resume") == read("demo", "--json=true", "--resume", "false")
    assert read("demo").resume
    assert not read("demo").json


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "true", "a, b", "--batch-size", "3", "--json"],
        ["demo", "--json", "true", "--batch-size", "3", "a, b"],
        ["--batch-size=3", "--json", "--", "demo", "true", "a, b"],
        ["--json", "--batch-size=3", "--recipe", "demo", "--prompts", '["true", "a, b"]'],
    ],
)
def test_positional_arguments_stand_anywhere(words):
    options = read(*words)
    assert (options.recipe, options.prompts, options.batch_size) == ("demo", ["true", "a, b"], 3)
    assert options.json


def test_one_prompt_is_a_prompt_and_not_a_list():
    for prompt in ("[hello", "a, b", "[1, 2]", "null", '"'):
        assert read("demo", prompt).prompts == [prompt]


def test_a_dash_before_a_value_is_a_sign():
    assert read("demo", "--loss.delta", "-3").loss.delta == -3


def test_defaults_can_come_from_elsewhere():
    arguments = ["demo", "--loss.delta", ".5"]
    defaults = {"loss": {"delta": 0.7, "max_gap": 9}, "batch_size": 2}
    options = parse("tests", fit, arguments, defaults)["options"]
    assert (options.loss, options.batch_size) == (Loss(delta=0.5, max_gap=9), 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "recipe is missing"),
        (["demo", "--batch-size=many"], "batch-size is 'many'; it takes int"),
        (["demo", "--engine=sglang"], "engine is 'sglang'; it takes Literal['plain', 'vllm']"),
        (["demo", "--loss.delta=q"], "loss.delta is 'q'; it takes float"),
        (["demo", "--lengths=1,2"], "lengths is '1,2'; use '[1, 2]'"),
        (["demo", "--speed=3"], "unrecognized arguments: --speed=3"),
        (["demo", "--batch-size"], "--batch-size: expected one argument"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(words, message, capsys):
    assert run_command("python -m tests fit", fit, words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert message in output.err


@pytest.mark.parametrize("words", [["--help"], ["score", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_before_the_end_ends_a_command_in_silence(words, unbuffered):
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
        exit_code_of(run)


def test_help_shows_hyphens_and_keeps_the_lines_of_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        run_command("python -m tests fit", fit, ["--help"])
    text = capsys.readouterr().out
    assert "usage: python -m tests fit RECIPE PROMPTS [options]" in text
    assert "\n  python -m tests fit demo --batch-size 4\n" in text
    assert "--loss.max-gap" in text
    assert "as --max-gap says" in text
    assert "--batch_size" not in text


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
ABOUT = "usage: python -m tests COMMAND\n\n{commands}\n"


PROGRAM = Program(
    module="tests",
    title="Tests",
    about=ABOUT,
    commands=COMMANDS,
    extra="serve",
    extras={"absent": "collect"},
    names={"plain": "blank"},
)


def run(*arguments: str) -> int:
    return PROGRAM.run(arguments)


def test_the_table_of_commands_is_the_help(capsys):
    assert run("--help") == 0
    assert "fit      train something" in capsys.readouterr().out
    assert run() == 2


def test_a_command_gets_dataclasses_or_its_arguments(capsys):
    assert run("fit", "demo", "--batch-size", "5") == 5
    assert "recipe='demo'" in capsys.readouterr().out
    assert run("plain", "a", "--b") == 2
    assert capsys.readouterr().out == "['a', '--b']\n"


def test_an_unknown_command_and_an_error_of_ours_are_one_line(capsys):
    assert run("fitt") == 2
    assert capsys.readouterr().err == "error: no command named 'fitt'; use fit\n"
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


def show_help(command, word: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        run_command("python -m tests fit", command, [word])


@dataclass(frozen=True, kw_only=True)
class Many:
    """A dozen options."""

    first: int = 1
    second: list[str] = field(default_factory=list)
    third: bool = False
    fourth: float | None = None
    fifth_part: Path = Path("here")
    """Where. And a second sentence."""
    sixth: int = 6
    seventh: int = 7
    eighth: int = 8
    ninth: int = 9
    needed: str
    tenth: int = 10
    eleventh: int = 11
    """The last, in words."""


def many(options: Many) -> None:
    """Do much.

    More about it.

    example:
      python -m tests many
    """


@common_options("needed", "eleventh")
def few(options: Many) -> None:
    """Do little."""


def test_short_help_is_purpose_examples_and_ten_options(capsys):
    show_help(many, "--help")
    text = capsys.readouterr().out
    assert "More about it" not in text
    assert "example:\n  python -m tests many\n" in text
    for line in (
        "--needed NEEDED",
        "--first N          (default: 1)",
        "--second ITEM ...",
        "--third\n",
        "--fourth X",
        "--fifth-part PART  Where. (default: here)",
    ):
        assert f"\n  {line}" in text
    assert "--tenth" not in text
    assert text.endswith("python -m tests fit --help-all shows all 12 options\n")


def test_the_whole_help_has_every_option_and_word(capsys):
    show_help(many, "--help-all")
    text = capsys.readouterr().out
    assert "More about it" in text
    assert "And a second sentence" in text
    assert "--eleventh N" in text
    assert "shows all" not in text


def test_a_command_says_which_of_its_options_are_common(capsys):
    show_help(few, "-h")
    text = capsys.readouterr().out
    assert "--eleventh N" in text
    assert "--sixth" not in text


def test_commands_are_named_as_they_are_typed(monkeypatch, capsys):
    own = "python -m tests plain --help and python -m tests.tool"
    monkeypatch.setattr("lengthwise.command_line.programs", lambda: {"tests": PROGRAM})
    assert as_typed(own) == own
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lengthwise", "fit"])
    assert as_typed(own) == "lengthwise blank --help and python -m tests.tool"
    print_next("python -m tests fit --out x", "python -m other fit")
    assert capsys.readouterr().out == "next: lengthwise fit --out x\nnext: python -m other fit\n"


def test_without_the_distribution_there_are_no_programs(monkeypatch):
    monkeypatch.setattr("lengthwise.command_line.DISTRIBUTION", "not-installed-anywhere")
    assert programs.__wrapped__() == {}


def test_ctrl_c_and_a_full_disk_are_one_line(capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "out.json")

    def other() -> None:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    assert run_command("tests", interrupted, []) == INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert run_command("tests", full, []) == 2
    assert "out.json cannot be written (No space left on device)" in capsys.readouterr().err
    with pytest.raises(ConnectionResetError):
        run_command("tests", other, [])


def test_help_imports_no_command():
    program = (
        "import sys; from scoring_service.__main__ import main; main(['--help'])\n"
        "print(sorted({'grpc', 'numpy', 'jsonargparse', 'onnxruntime'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "[]", run.stderr


def test_a_json_log_line_is_one_object_with_the_trace_inside():
    try:
        raise ValueError("why\nindeed")
    except ValueError:
        record = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, "f", 1, "failed on %s", ("this",), __import__("sys").exc_info()
        )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["message"] == "failed on this"
    assert "indeed" in entry["exception"]


@pytest.mark.parametrize("kind", LOG_FORMATS)
def test_what_a_client_sends_is_no_line_of_the_log(kind, capsys, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    configure_logs(kind)
    forged = "id\n2026-11-23 ERROR all is lost\r\x1b[2J\u2028\x85\x7f"
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("x").exception("no target %s", forged)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].isprintable()
    assert all(line.startswith("  ") and line.isprintable() for line in lines[1:])
    assert len(lines) == 1 if kind == "json" else len(lines) > 1


def test_an_error_with_lines_and_control_characters_in_it_is_one_printable_line(capsys):
    def fail():
        raise ConfigError("of a\n  foreign\tlibrary \x1b[31mred")

    assert exit_code_of(fail) == 2
    assert capsys.readouterr().err == "error: of a foreign library \\x1b[31mred\n"
