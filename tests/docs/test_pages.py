"""README and docs: the form of the README, and that every link, file, command and option exists."""

import importlib
import io
import logging
import re
import shlex
from collections import Counter
from contextlib import redirect_stdout
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

from benchmarks.__main__ import SCRIPTS
from benchmarks.papers.rows import KINDS, VERDICTS, read_paper
from benchmarks.papers.runs import PAPERS
from lengthwise.__main__ import by_name
from lengthwise.command_line import program as command_line
from scheduler_adapters.engines.vllm_v1.additional_config import SETTINGS, configured_policy
from scheduler_adapters.policy import POLICIES
from tests.test_floors import FLOORS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("training", "scoring_service", "scheduler_adapters")
"""Packages with commands of their own."""
SOURCES = ("lengthwise", *PACKAGES)
HOUSES = (*PACKAGES, "benchmarks")
TREES = (*SOURCES, "benchmarks")
PROGRAMS = [importlib.import_module(f"{package}.__main__").PROGRAM for package in PACKAGES]
README = (ROOT / "README.md").read_text()
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "datasets/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOREIGN_OPTIONS = {
    *("--scheduler-cls", "--enable-log-requests", "--enable-log-outputs", "--enable-log-deltas"),
    *("--chat-template", "--backend-store-uri", "--batching", "--golden", "--vidur"),
    *("--optim.clip-norm", "--validations-per-epoch", "--patience", "--trainer.callbacks.monitor"),
    *("--trainer.callbacks.mode",),
}
"""Options of vLLM, MLflow and scripts of the tests, and removed ones that the changelog names."""
_MAX_README_LINES = 90
_MAX_QUICK_START_LINES = 8

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)


def code_spans(text: str) -> list[str]:
    """Texts between backticks outside fenced blocks, each in one line."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


# --- the form of the README


def test_the_readme_has_at_most_90_lines():
    assert len(README.splitlines()) <= _MAX_README_LINES


def test_the_first_screen_is_a_sentence_a_figure_and_commands():
    title, sentence, figure, gain, operators, tests, *_ = re.split(r"\n\n", README)
    assert title == "# Lengthwise"
    assert sentence.startswith("**")
    assert sentence.endswith(".**")
    assert re.fullmatch(r"!\[[^\]]+\]\([^)]+\)", figure)
    assert "vLLM" in gain
    assert "GPU" in gain
    assert re.findall(r"^lengthwise ([\w-]+)", operators, flags=re.M) == [
        "advise", "serve-vllm", "serve",
    ]  # fmt: skip
    assert re.findall(r"^make \w+", tests, flags=re.M) == ["make demo", "make test"]
    assert README[: README.index(tests) + len(tests)].count("\n") < 25


def test_quick_starts_have_at_most_eight_lines():
    blocks = code_blocks(README.partition("## Three quick starts")[2].partition("\n## ")[0])
    assert [language for language, _ in blocks].count("sh") == 3
    for _, content in blocks:
        assert len(content.splitlines()) <= _MAX_QUICK_START_LINES


def test_each_headline_result_names_its_conditions_and_command():
    table = README.partition("## Results")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 4
    for row in rows:
        assert len(row) == 4, row
        assert all(cell.strip(" |") for cell in row), row
        assert re.search(r"`(python -m|make) ", row[3]), f"no command in {row}"


@pytest.mark.parametrize("paper", PAPERS)
def test_numbers_of_a_papers_rows_are_those_of_table_and_file(paper: str) -> None:
    summary = (ROOT / "docs/results/reproductions.md").read_text()
    page = ROOT / f"docs/results/{paper}.md"
    text = page.read_text() if page.exists() else summary.split(f"\n## {paper.upper()}\n")[1]
    table = re.search(r"^\| verdict .*\n((?:\|.*\n)+)", text, flags=re.M)
    verdicts = Counter(re.findall(r"^\| (\w+)(?: \((\w+)\))? \|", table[1], flags=re.M))
    shown = re.search(rf"^\| .* reproduce {paper}\b.*", summary, flags=re.M)[0].split(" | ")[1:]
    module = importlib.import_module(f"benchmarks.papers.{paper}")
    experiment = getattr(module, f"{paper.title()}Experiment")
    rows = read_paper(Path(module.__file__).with_suffix(".toml"), experiment).rows
    for kind, cell in zip(KINDS, shown, strict=True):
        counts = [verdicts[one, "" if kind == "paper" else kind] for one in VERDICTS]
        assert re.match(r"[\d /]+\d", cell)[0] == " / ".join(map(str, counts))
        assert sum(counts) == sum(row.kind == kind and not row.needs for row in rows)
        if kind == "paper":
            assert f"{paper} {'/'.join(map(str, counts))}" in " ".join(README.split()).lower()


# --- links, files and names


@pages
def test_relative_links_lead_to_files_and_headings_that_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M)
            slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{page.name} links to {target}, a heading that is not there"


@pages
def test_files_named_in_a_page_exist(page):
    tops = "|".join((*TREES, "datasets", "docs", "tests", r"\.github", r"\.ci"))
    for span in re.findall(r"`([^`\s]+)`", page.read_text()):
        if re.fullmatch(rf"({tops})/[\w./*-]*", span):
            assert list(ROOT.glob(span.rstrip("/"))), f"{page.name} names {span}"
        elif re.fullmatch(r"(?!my_)\w+\.py", span):
            assert any(list((ROOT / package).rglob(span)) for package in TREES), span


@pages
def test_modules_and_names_in_a_page_exist(page):
    dotted = rf"\b(?:benchmarks|{'|'.join(SOURCES)})(?:\.(?!cdx)[A-Za-z_]\w*)+"
    for name in set(re.findall(dotted, page.read_text())):
        parts, source = name.split("."), None
        while source is None:
            path = ROOT.joinpath(*parts)
            source = next(
                (p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None
            )
            parts = parts if source else parts[:-1]
        for rest in name.split(".")[len(parts) :]:
            is_factory = rest.replace("_", "-") in POLICIES and "vllm_v1" in parts
            found = re.search(rf"\b{rest}\b", source.read_text())
            assert found or is_factory, f"{page.name} names {name}; {source} has no {rest}"


@pytest.mark.parametrize("package", TREES)
def test_files_named_in_docstrings_and_comments_exist(package):
    """A room's reading guide (`__init__.py`) names files of the room; others, files of ours."""
    paths = [str(path) for top in (*TREES, "tests") for path in (ROOT / top).rglob("*.*")]
    for path in (ROOT / package).rglob("*.py"):
        for name in re.findall(r"`([\w/]+\.(?:py|proto))`", path.read_text()):
            if path.stem == "__init__":
                assert (path.parent / name).is_file(), f"{path} names {name}"
            assert any(other.endswith(f"/{name}") for other in paths), f"{path} names {name}"


def test_the_floors_of_the_page_are_those_that_the_tests_hold():
    text = (ROOT / "docs/architecture.md").read_text().partition("## Floors")[2]
    shown = re.findall(r"^(?:(\w+)/(?:$| )|  ([\w/]+)/ )", code_blocks(text)[0][1], flags=re.M)
    package, rooms = "", dict[str, list[str]]()
    for name, room in shown:
        if name:
            package = name
        else:
            rooms.setdefault(package, []).append(room.replace("/", "."))
    for package in TREES:
        floors = [line.split() for line in FLOORS[package]]
        is_room = {r: (ROOT / package / r.replace(".", "/")).is_dir() for f in floors for r in f}
        place = {room: n for n, floor in enumerate(floors) for room in floor if is_room[room]}
        below = {
            room for room in place if room.rpartition(".")[0] in ("commands", "simulator.latency")
        }
        assert set(rooms[package]) == place.keys() - below
        assert [place[room] for room in rooms[package]] == sorted(place[r] for r in rooms[package])


# --- commands and their options


@cache
def help_of(package: str, *command: str) -> str:
    """The text of `python -m PACKAGE COMMAND --help-all`, options with hyphens."""
    main = importlib.import_module(f"{package}.__main__").main
    output = io.StringIO()
    with redirect_stdout(output):
        try:
            status = main([*command, "--help-all"])
        except SystemExit as error:
            status = error.code
    assert status in (0, None), f"python -m {package} {command} --help-all ends with {status}"
    return hyphenated(output.getvalue())


def hyphenated(text: str) -> str:
    """A command with hyphens for underscores in the names of its options."""
    return re.sub(r"--\w[\w.-]*", lambda option: option[0].replace("_", "-"), text)


def commands_of(package: str) -> list[str]:
    """The commands that `python -m PACKAGE --help` lists."""
    text = help_of(package).partition("\ncommands:\n")[2]
    found = re.findall(r"^ {2,4}([a-z][a-z-]*) {2,}\w", text, flags=re.M)
    assert found, f"python -m {package} --help lists no commands"
    return found


def options_in(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][\w.-]*", hyphenated(text)))


def invocations(text: str) -> list[tuple[str, str, str]]:
    """(package, command, arguments) of each `python -m PACKAGE COMMAND ...` in a page.

    `lengthwise COMMAND ...` is one of them.
    """
    for name, program in by_name(PROGRAMS).items():
        full = f"python -m {program.module} {name}"
        text = re.sub(rf"(?<=[`\n])lengthwise {name}(?![\w-])", full, text)
    found = _invocations(text, rf"python -m ({'|'.join(HOUSES)}) ([a-z][a-z-]*)(.*)")
    return [(p, c, rest) for p, c, rest in found if p != "benchmarks" or c not in SCRIPTS]


@pages
def test_commands_of_lengthwise_named_in_a_page_exist(page):
    named = re.findall(r"(?<=[`\n])lengthwise ([a-z][a-z-]*)", page.read_text())
    assert set(named) <= {*by_name(PROGRAMS), "completion", "inspect"}


def module_invocations(text: str) -> list[tuple[str, str, str]]:
    """(package, module, arguments) of each `python -m PACKAGE.MODULE ...` in a page."""
    return _invocations(text, rf"python -m ({'|'.join(PACKAGES)})((?:\.\w+)+)(.*)")


def _invocations(text: str, pattern: str) -> list[tuple[str, str, str]]:
    lines = code_spans(text)
    for _, content in code_blocks(text):
        lines += in_loops(content)
    found = [match.groups() for line in lines for match in re.finditer(pattern, line)]
    # What follows a # is a comment, what follows a bare -- belongs to another program.
    return [(p, c, re.split(r"\s#\s|\s--\s|`", rest)[0]) for p, c, rest in found]


def in_loops(block: str) -> list[str]:
    """The whole lines of a block; one that names a loop's variable, once for each of its values."""
    lines = re.sub(r"\\\n *", "", block).splitlines()
    for name, listed in re.findall(r"\bfor (\w+) in ([^;]+);", block):
        lines = [
            line.replace(f"${name}", value)
            for line in lines
            for value in (listed.split() if f"${name}" in line else [""])
        ]
    return lines


@pages
def test_commands_named_in_a_page_exist_with_their_options(page):
    for package, command, arguments in invocations(page.read_text()):
        assert command in commands_of(package), f"python -m {package} {command}"
        missing = options_in(arguments) - options_in(help_of(package, command))
        assert not missing, f"python -m {package} {command} has no {missing}"


@pages
def test_options_named_alone_belong_to_some_command(page):
    known = FOREIGN_OPTIONS.union(
        *(options_in(help_of(p, c)) for p in HOUSES for c in commands_of(p))
    )
    for span in code_spans(page.read_text()):
        if span.startswith("--"):
            assert options_in(span) <= known, f"{page.name} names {span}"


class Parsed(Exception):
    """Raised in place of running a command."""


@pytest.fixture
def only_parse(tmp_path, monkeypatch):
    """Commands read their arguments with the real parser, and stop before they run."""
    real = command_line.parse
    guide = (ROOT / "docs/guides/own-policy.md").read_text()
    (tmp_path / "my_policy.py").write_text(dict(code_blocks(guide))["python"])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("recipe: demo\n")
    monkeypatch.chdir(tmp_path)

    def parse_only(*arguments: Any, **keywords: Any) -> NoReturn:
        real(*arguments, **keywords)
        raise Parsed

    monkeypatch.setattr(command_line, "parse", parse_only)
    monkeypatch.setattr(logging, "basicConfig", lambda **settings: None)


@pages
@pytest.mark.usefixtures("only_parse")
def test_command_lines_shown_in_a_page_are_understood(page):
    text = page.read_text()
    shown = [(f"{package}.__main__", command, rest) for package, command, rest in invocations(text)]
    shown += [(package + name, "", rest) for package, name, rest in module_invocations(text)]
    for module, command, arguments in shown:
        if words := shlex.split(arguments):  # else it is only named
            main = importlib.import_module(module).main
            with pytest.raises(Parsed):
                assert main([*command.split(), *words]) == 0, f"{module} {command}{arguments}"


def test_the_commands_for_a_gpu_name_schedulers_that_exist():
    text = (ROOT / "docs/results/gpu.md").read_text()
    runs = [dict(pairwise(shlex.split(rest))) for _, _, rest in invocations(text)]
    made = {run["--policy"] for run in runs if "--policy" in run}
    assert made == {"fcfs", "pars", "slai", "pascal"}
    for name in made:
        configured_policy({SETTINGS: {"policy": name}})


@pytest.mark.parametrize("package", HOUSES)
def test_commands_named_in_help_exist_with_their_options(package):
    for command in commands_of(package):
        for other, name, arguments in invocations(f"```\n{help_of(package, command)}```\n"):
            assert name in commands_of(other), f"{package} {command} --help names {other} {name}"
            shown = options_in(re.split(r"`|\)", arguments)[0])
            assert shown <= options_in(help_of(other, name)), (package, command, arguments)


def test_the_readme_names_a_command_of_every_package():
    assert {package for package, _, _ in invocations(README)} == set(HOUSES)
