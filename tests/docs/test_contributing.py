"""The recipes of docs/contributing.md work: each is run in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/contributing.md").read_text()
RECIPES = dict(re.findall(r"^## (Add .*?)$(.*?)(?=^## |\Z)", TEXT, flags=re.M | re.S))
SLOW = {"Add a loss"}
_MAX_LINES = 10
_TIMEOUT_S = 600


def blocks(name: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block of a recipe."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", RECIPES[name], flags=re.M | re.S)


def run(name: str, folder: Path) -> str:
    """Write the files of a recipe into `folder`, run its commands there; returns their output."""
    output = ""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for language, content in blocks(name):
        if language != "sh":
            first, _, rest = content.partition("\n")
            path = folder / first.lstrip("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            # A table has no comments.
            path.write_text(rest if language == "csv" else content)
            continue
        done = subprocess.run(
            ["bash", "-euc", content],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{name}:\n{content}\n{done.stdout}\n{done.stderr}"
        output += done.stdout
    return output


def test_there_is_a_recipe_for_each_extension():
    things = ("a policy", "a placement", "a loss", "an engine", "a data card")
    assert list(RECIPES) == [f"Add {thing}" for thing in things]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_at_most_ten_lines(name):
    """Not counted are blank lines and those that name a file."""
    lines = [line for _, content in blocks(name) for line in content.splitlines()]
    assert len([line for line in lines if line and not line.startswith("# ")]) <= _MAX_LINES


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in RECIPES]
)
def test_a_recipe_runs(name, tmp_path):
    run(name, tmp_path)


def test_a_recipe_that_breaks_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, "Add a bug", "\n```sh\npython -c 'raise SystemExit(3)'\n```\n")
    with pytest.raises(AssertionError, match="Add a bug"):
        run("Add a bug", tmp_path)
