"""Every layout reads small files of its source's form, and its table fits the card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from tests.training.sources.github import REPOSITORIES
from training.data.cards import read_card
from training.sources.layouts import LAYOUTS


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def built(name: str, folder: Path) -> dict[str, pd.DataFrame]:
    places = {}
    for path, content in sorted(REPOSITORIES[read_card(name).source].items()):
        if re.fullmatch(LAYOUTS[name].files, path):
            places[path] = folder / path.replace("/", "-")
            places[path].write_bytes(content)
    return LAYOUTS[name].build(places, words)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_tables_have_the_columns_of_the_card(name: str, tmp_path: Path) -> None:
    card, tables = read_card(name), built(name, tmp_path)
    columns = set(tables["lengths"])
    if card.prompts is not None:
        assert set(card.prompts.keys) <= columns
        columns |= set(tables["prompts"])
        assert not tables["prompts"].duplicated(list(card.prompts.keys)).any()
    assert {*card.fields.columns(), *card.where} <= columns
    assert (tables["lengths"].output_tokens > 0).all()


def test_rows_keep_prompts_and_lengths_together(tmp_path: Path) -> None:
    teacher = built("gpteacher-gpt4", tmp_path)["lengths"]
    assert teacher[["subset", "prompt", "output_tokens"]].values.tolist() == [
        ["codegen", "Add.\n\n1, 2", 3],
        ["codegen", "Greet.", 1],
        ["roleplay", "Be a bee.", 2],
        ["toolformer", "Call.", 1],
    ]
    davinci = built("alpaca-davinci003", tmp_path)["lengths"]
    assert davinci.output_tokens.tolist() == [1, 26, 101]
    evaluated = built("alpaca-eval", tmp_path)["lengths"]
    assert evaluated[["model", "output_chars"]].values.tolist() == [["a model", 8], ["m", 9]]
    arena = built("arena-hard", tmp_path)
    assert arena["lengths"].model.tolist() == ["m", "m"]
    assert arena["prompts"].prompt.tolist() == ["One?", "Two?"]
    zero = built("zeroeval", tmp_path)["lengths"]
    assert zero[["dataset", "hidden_reasoning", "output_tokens"]].values.tolist() == [
        ["crux", True, 2],
        ["gsm", False, 3],
        ["gsm", False, 1],
    ]
