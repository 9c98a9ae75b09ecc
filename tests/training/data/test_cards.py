"""Cards: every one in the repository parses; joins and filters do what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from scoring_service.bundle import sha256_of
from scoring_service.errors import DataError
from training.data.cards import CARDS, load_data, read_card


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in CARDS.glob("*/card.yaml")))
def test_every_card_of_the_repository_is_complete(folder: str) -> None:
    card = read_card(folder)
    assert card.id == folder
    assert card.commit
    assert card.licence
    assert card.notes
    if card.source != "generated":
        assert len(card.sha256) == 64
        assert card.prompts is None or len(card.prompts.sha256) == 64


def test_prompts_are_joined_and_rows_filtered(
    make_card: Callable[..., Path], tmp_path: Path
) -> None:
    lengths = tmp_path / "lengths.parquet"
    prompts = tmp_path / "prompts.parquet"
    pd.DataFrame(
        {
            "set": ["x", "x", "y"],
            "id": [1, 2, 1],
            "output_tokens": [3, 4, 5],
            "ok": [True, False, True],
        }
    ).to_parquet(lengths)
    pd.DataFrame(
        {"set": ["x", "x", "y"], "id": [1, 2, 1], "prompt": ["a", "b", "c"], "ok": [0, 0, 0]}
    ).to_parquet(prompts)
    card = make_card(
        table=lengths,
        rows=3,
        where={"ok": True},
        prompts={"path": prompts.name, "sha256": sha256_of(prompts), "keys": ["set", "id"]},
    )
    records = load_data(str(card)).records
    assert [(r.prompt, r.output_tokens) for r in records] == [("a", 3), ("c", 5)]


def test_a_changed_file_of_prompts_is_refused(
    make_card: Callable[..., Path], tmp_path: Path
) -> None:
    lengths = tmp_path / "lengths.parquet"
    pd.DataFrame({"id": [1], "output_tokens": [3]}).to_parquet(lengths)
    pd.DataFrame({"id": [1], "prompt": ["a"]}).to_parquet(tmp_path / "prompts.parquet")
    card = make_card(
        table=lengths,
        rows=1,
        prompts={"path": "prompts.parquet", "sha256": "0" * 64, "keys": "id"},
    )
    with pytest.raises(DataError, match=r"prompts\.parquet: SHA-256 is"):
        load_data(str(card))
