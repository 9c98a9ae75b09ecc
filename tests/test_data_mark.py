"""The mark `data`: tests that read the data folder carry it, and no other test sees the folder."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ENVIRONMENT

TESTS = Path(__file__).parent


def unmarked(source: str) -> Iterator[str]:
    """Yield the tests that take the data folder without the mark."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            reads = "data_folder" in (argument.arg for argument in node.args.args)
            if reads and "pytest.mark.data" not in marks:
                yield node.name


def test_every_test_that_takes_the_data_folder_is_marked():
    sources = {path: path.read_text() for path in TESTS.rglob("test_*.py")}
    assert not {str(path): names for path, s in sources.items() if (names := [*unmarked(s)])}


def test_a_test_without_the_mark_is_found():
    assert [*unmarked("def test_a(data_folder): ...")] == ["test_a"]
    assert not [*unmarked("@pytest.mark.data\ndef test_a(data_folder): ...")]


def test_the_environment_names_no_data_folder_to_other_tests():
    assert ENVIRONMENT not in os.environ
