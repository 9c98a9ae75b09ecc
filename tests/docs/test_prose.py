"""Prose: first lines that name the thing, no sentence that has to be read twice."""

import pytest

from tests.docs import prose


@pytest.mark.parametrize("package", prose.PACKAGES)
def test_docstrings_are_plain(package):
    assert not [
        flaw for path in prose.files([prose.ROOT / package]) for flaw in prose.found_in(path)
    ]


def test_pages_are_plain():
    pages = [prose.ROOT / "README.md", prose.ROOT / "docs"]
    assert not [flaw for path in prose.files(pages) for flaw in prose.found_in(path)]


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("Those who wait for their client.", "first line"),
        (f"Return {'one more ' * 13}word.", "sentence of"),
        ("Blocks, seats ...", "ellipsis"),
    ],
)
def test_a_flaw_is_found(text, flaw):
    assert any(found.startswith(flaw) for found in prose.flaws(text, is_docstring=True))


def test_code_is_not_prose():
    assert not list(prose.flaws("Call `ask_rank` once.\n\n    who = 1\n", is_docstring=True))
