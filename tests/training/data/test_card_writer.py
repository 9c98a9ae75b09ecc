"""A written card describes its table, and never replaces the card of another one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from scoring_service.errors import ConfigError
from training.data.card_writer import card_path, refuse_foreign_card, write_card
from training.data.cards import load_data


def test_a_written_card_loads_the_table_it_describes(tmp_path: Path) -> None:
    table = tmp_path / "my lengths.parquet"
    frame = pd.DataFrame({"prompt": ["a", "b"], "output_tokens": [3, 4], "model": ["m", "m"]})
    for rows in (1, 2):  # A longer table gets a new card.
        frame[:rows].to_parquet(table)
        refuse_foreign_card(table)
        write_card(
            table, columns=list(frame), rows=rows, source="here", tokenizer="t", notes="none"
        )
        data = load_data(str(card_path(table)))
        assert [record.output_tokens for record in data.records] == [3, 4][:rows]
        assert (data.card.id, data.card.tokenizer) == ("my-lengths", "t")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("path: other.parquet\n", "another table"),
        ("- 1\n", "another table"),
        ("{", "cannot be read"),
    ],
)
def test_another_tables_card_is_not_replaced(tmp_path: Path, content: str, message: str) -> None:
    card_path(tmp_path / "t.parquet").write_text(content)
    with pytest.raises(ConfigError, match=message):
        refuse_foreign_card(tmp_path / "t.parquet")
