"""Options from dataclasses, short and whole help, and errors of one line."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings, strategies as st

from lengthwise.command_line.options import POSITIONAL, common_options, parse
from lengthwise.command_line.program import run_command


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
    """Prompts of a step, as --max_gap states."""
    lengths: list[int] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    engine: Literal["plain", "vllm"] = "plain"
    out: Path | None = None
    slo: dict[str, float] | None = None
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


READ: list[tuple[list[str], dict[str, object]]] = [
    (["--batch-size", "3", "--loss.max-gap=7"], {"batch_size": 3, "loss": Loss(max_gap=7)}),
    (["--batch_size=3", "--loss.max_gap", "7"], {"batch_size": 3, "loss": Loss(max_gap=7)}),
    (["--loss.delta", "-3"], {"loss": Loss(delta=-3)}),
    *((["--lengths", *words], {"lengths": [16, 32]}) for words in (["16", "32"], ["[16, 32]"])),
    (["--lengths", "16,32"], {"lengths": [16, 32]}),
    (["--columns", "a b", "3", "null"], {"columns": ("a b", "3", "null")}),
    (["--columns=one"], {"columns": ("one",)}),
    (["--columns=one, two"], {"columns": ("one", "two")}),
    (["[a, b]", "--columns", "[a, b]", "c"], {"prompts": ["[a, b]", "c"], "columns": ("a", "b")}),
    (["--json", "--no-resume"], {"json": True, "resume": False}),
    (["--json=true", "--resume", "false"], {"json": True, "resume": False}),
    ([], {"json": False, "resume": True}),
]


@pytest.mark.parametrize(("words", "right"), READ)
def test_words_are_options_however_they_are_typed(words, right):
    options = read("demo", *words)
    assert {name: getattr(options, name) for name in right} == right


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
    for prompt in ("[hello", "a, b", "[1, 2]", "[a, b]", "null", '"'):
        assert read("demo", prompt).prompts == [prompt]


TEXTS = st.lists(
    st.sampled_from(["null", "[a, b]", '["a", 1]', "1", "yes", "a: b", "- x", "#c", "\\", "\x85"])
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    min_size=2,
)


@settings(max_examples=30)
@given(TEXTS)
@example(["hello 😀", "\u2028\n\t"])
def test_any_text_reaches_a_list_as_typed(texts):
    assert read("demo", "--", *texts).prompts == texts
    assert read("demo", f"--columns={json.dumps(texts)}").columns == tuple(texts)
    words = [f"x{text}" for text in texts]
    assert read("demo", "--columns", *words).columns == tuple(words)


@pytest.mark.parametrize("text", ["[a b", "[a b, c]", "null", "1", "😀", "\u2028", "\\", "a\nb"])
def test_a_single_text_of_a_list_is_not_parsed(text):
    assert read("demo", "--columns", text).columns == (text,)


def test_defaults_can_come_from_elsewhere():
    arguments = ["demo", "--loss.delta", ".5"]
    defaults = {"loss": {"delta": 0.7, "max_gap": 9}, "batch_size": 2}
    options = parse("tests", fit, arguments, defaults)["options"]
    assert (options.loss, options.batch_size) == (Loss(delta=0.5, max_gap=9), 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "recipe is missing"),
        (["demo", "--batch-size=many"], "batch-size is 'many'; it takes a whole number"),
        (["demo", "--engine=sglang"], "engine is 'sglang'; use one of plain, vllm"),
        (["demo", "--loss.delta=q"], "loss.delta is 'q'; it takes a number"),
        (["demo", "--lengths", "1", "q"], "it takes one or more words (a whole number each)"),
        (["demo", "--slo", "q"], """slo is 'q'; it takes JSON, {"NAME": a number} or null"""),
        (["demo", "--speed=3"], "no option --speed; --help-all shows all"),
        (["demo", "--no-batchsize"], "no option --no-batchsize; did you mean --batch-size?"),
        (["demo", "--delta", "3"], "no option --delta; did you mean --loss.delta?"),
        (["demo", "--batch-size"], "batch-size has no value; it takes a whole number"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(words, message, capsys):
    assert run_command("python -m tests fit", fit, words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(rf"error: .*{re.escape(message)}.*\n", output.err)


def help_of(command, word: str, capsys) -> str:
    with pytest.raises(SystemExit, match="0"):
        run_command("python -m tests fit", command, [word])
    return capsys.readouterr().out


def test_help_shows_hyphens_and_keeps_the_lines_of_examples(capsys):
    text = help_of(fit, "--help", capsys)
    assert "usage: python -m tests fit RECIPE PROMPTS [options]" in text
    assert "\n  python -m tests fit demo --batch-size 4\n" in text
    assert "--loss.max-gap" in text
    assert "as --max-gap states" in text
    assert "--batch_size" not in text


@dataclass(frozen=True, kw_only=True)
class Many:
    """A dozen options."""

    first: int = 1
    second: list[str] = field(default_factory=list)
    third: bool = False
    fourth: float | None = None
    fifth_part: Path = Path("here")
    """Place. And a second sentence."""
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
    text = help_of(many, "--help", capsys)
    assert "More about it" not in text
    assert "example:\n  python -m tests many\n" in text
    for line in (
        "--needed NEEDED",
        "--first N          (default: 1)",
        "--second ITEM ...",
        "--third\n",
        "--fourth X",
        "--fifth-part PART  Place. (default: here)",
    ):
        assert f"\n  {line}" in text
    assert "--tenth" not in text
    assert text.endswith("python -m tests fit --help-all shows all 12 options\n")


def test_the_whole_help_has_every_option_and_word(capsys):
    text = help_of(many, "--help-all", capsys)
    assert "More about it" in text
    assert "And a second sentence" in text
    assert "--eleventh ELEVENTH" in text
    assert "shows all" not in text


def test_a_command_says_which_of_its_options_are_common(capsys):
    text = help_of(few, "-h", capsys)
    assert "--eleventh N" in text
    assert "--sixth" not in text
