"""Cards are strict about what they promise; a table of one's own needs none."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml

from scoring_service.errors import DataError
from training.cards import CARDS, load_data, read_card

FRAME = pd.DataFrame({"prompt": ["a", "b", "c"], "output_tokens": [3, 0, 5], "model": "m"})


def write_card(folder: Path, **changes: object) -> str:
    FRAME.to_parquet(folder / "log.parquet")
    content = {"id": "log", "path": "log.parquet", "fields": {"prompt": "prompt"}, "tokenizer": "t"}
    (folder / "card.yaml").write_text(yaml.safe_dump(content | changes))
    return str(folder / "card.yaml")


@pytest.mark.parametrize("path", sorted(CARDS.glob("*/card.yaml")), ids=lambda p: p.parent.name)
def test_every_card_of_the_repository_says_where_its_data_comes_from(path: Path) -> None:
    card = read_card(path.parent.name)
    assert card.id == path.parent.name
    assert card.source
    assert card.commit
    assert card.licence
    assert card.records
    assert card.source == "generated" or len(card.sha256) == 64


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_a_table_with_the_usual_columns_needs_no_card(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log{suffix}"
    if suffix == ".parquet":
        FRAME.to_parquet(path)
    elif suffix == ".csv":
        FRAME.to_csv(path, index=False)
    else:
        FRAME.to_json(path, orient="records", lines=True)
    data = load_data(str(path))
    assert [(r.prompt, r.output_tokens, r.model) for r in data.records] == [
        ("a", 3, "m"),
        ("c", 5, "m"),
    ]
    assert data.num_empty == 1
    assert len(data.card.digest) == 64


def test_a_card_of_ones_own_checks_only_what_it_states(tmp_path: Path) -> None:
    assert len(load_data(write_card(tmp_path)).records) == 2
    with pytest.raises(DataError, match="3 rows, the card says 4"):
        load_data(write_card(tmp_path, records=4))
    with pytest.raises(DataError, match="SHA-256 is"):
        load_data(write_card(tmp_path, sha256="0" * 64))


def test_an_unknown_key_lists_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="licence"):
        read_card(write_card(tmp_path, license="MIT"))


def test_an_unknown_data_set_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match="alpaca-vicuna7b"):
        read_card("nosuch")


def test_data_that_is_nowhere_is_replaced_loudly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LENGTHWISE_DATA", "")
    data = load_data("alpaca-vicuna7b")
    assert data.card.id == "synthetic"
    assert data.attainable_tau_b is not None
    assert 0 < data.attainable_tau_b < 1
    assert "SYNTHETIC DATA" in caplog.text
