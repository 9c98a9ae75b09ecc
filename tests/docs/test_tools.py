"""What users find beside the code: hooks that equal `make lint`, and the licence."""

import re
import tomllib
from pathlib import Path

import yaml

from lengthwise import __version__

ROOT = Path(__file__).resolve().parents[2]


def test_pre_commit_runs_what_lint_runs_and_downloads_nothing():
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.M)
    assert recipe is not None
    linters = [line.strip().lstrip("@") for line in recipe[1].splitlines()]
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == linters
    assert all(hook["language"] == "system" for hook in repository["hooks"])
    assert not any(hook["pass_filenames"] for hook in repository["hooks"])


def test_the_licence_is_named_and_its_text_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_the_changelog_has_a_section_for_the_packages_version():
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert headings[0] == "Unreleased"
    assert __version__ in headings
