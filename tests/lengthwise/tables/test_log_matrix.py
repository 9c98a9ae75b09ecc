"""Each quirk in each format is read right, left out and counted, or refused: never guessed."""

import pytest

from tests.lengthwise.tables.log_matrix import DOCS, FORMATS, QUIRKS, outcome, table


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """The outcome of each cell."""
    made = {(name, quirk): tmp_path_factory.mktemp("log") for name in FORMATS for quirk in QUIRKS}
    return {cell: outcome(folder, *cell) for cell, folder in made.items()}


def test_no_quirk_is_silent_and_the_docs_show_what_becomes_of_each(
    cells: dict[tuple[str, str], str],
) -> None:
    assert DOCS.read_text().endswith(table(cells)), "run the command on that page"
