"""Cards: the repository's parse, joins and filters hold, a written one replaces no other's."""

import logging
from dataclasses import replace

import pandas as pd
import pytest

from lengthwise.bundle import sha256_of
from lengthwise.errors import ConfigError, DataError
from tests.lengthwise.tables import logs
from tests.lengthwise.tables.logs import write_lines
from training.config import DataConfig
from training.data.cards import (
    CARDS,
    LoadedData,
    card_path,
    load_data,
    read_card,
    refuse_foreign_card,
    write_card,
)


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in CARDS.glob("*/card.yaml")))
def test_every_card_of_the_repository_is_complete(folder):
    card = read_card(folder)
    assert card.id == folder
    assert card.commit
    assert card.licence
    assert card.notes
    assert len(card.sha256) == 64
    assert card.prompts is None or len(card.prompts.sha256) == 64


def lengths(data: LoadedData) -> list[tuple[str, int]]:
    return [(r["prompt"], *r["output_tokens"]) for r in data.records]


def test_prompts_are_joined_and_rows_filtered(make_card, tmp_path):
    table, prompts = tmp_path / "lengths.parquet", tmp_path / "prompts.parquet"
    keys = {"set": ["x", "x", "y"], "id": [1, 2, 1]}
    rows = {"output_tokens": [3, 4, 5], "ok": [True, False, True]}
    pd.DataFrame(keys | rows).to_parquet(table)
    pd.DataFrame(keys | {"prompt": ["a", "b", "c"], "ok": 0}).to_parquet(prompts)
    joined = {"path": prompts.name, "sha256": sha256_of(prompts), "keys": ["set", "id"]}
    card = make_card(table=table, rows=3, where={"ok": True}, prompts=joined)
    assert lengths(load_data(str(card))) == [("a", 3), ("c", 5)]
    pd.DataFrame(keys | {"set": "x", "prompt": ["a", "b", "c"]}).to_parquet(prompts)
    with pytest.raises(DataError, match=r"prompts\.parquet: SHA-256 is"):
        load_data(str(card))
    card.write_text(card.read_text().replace(joined["sha256"], sha256_of(prompts)))
    earlier = r"prompts\.parquet, row 2: its keys are those of an earlier"
    with pytest.raises(DataError, match=earlier):
        load_data(str(card))


def test_a_written_card_loads_the_table_it_describes(tmp_path):
    table = tmp_path / "my lengths.parquet"
    frame = pd.DataFrame({"prompt": ["a", "b"], "output_tokens": [3, 4], "model": ["m", "m"]})
    for rows in (1, 2):  # A longer table gets a new card.
        frame[:rows].to_parquet(table)
        refuse_foreign_card(table)
        about = {"source": "here", "tokenizer": "t", "notes": "none"}
        write_card(table, columns=list(frame), rows=rows, **about)
        data = load_data(str(card_path(table)))
        assert [n for _, n in lengths(data)] == [3, 4][:rows]
        assert (data.card.id, data.card.tokenizer) == ("my-lengths", "t")


def test_a_log_needs_no_card(tmp_path):
    data = load_data(str(write_lines(tmp_path / "gate.v2.jsonl", logs.OPENAI)))
    assert data.card.id == "gate.v2"
    assert lengths(data) == [("one", 10), ("two", 20), ("three", 30), ("four", 40)]
    assert set(data.records["model"]) == {"m"}
    assert data.records["reasoning_tokens"][:] == [0, 0, 0, 25]
    (tmp_path / "server.log").write_text(logs.VLLM_OLD)
    assert [n for _, n in lengths(load_data(str(tmp_path / "server.log")))] == [4, 1]


def test_columns_of_a_table_without_a_card_are_named_by_settings(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    rows = [{"chat": [{"role": "user", "content": f"p{n}"}], "n": {"out": n}} for n in (3, 4)]
    rows.append({"chat": [], "n": {"out": 5}})
    path = str(write_lines(tmp_path / "chats", rows))
    with pytest.raises(DataError, match=r"give --prompt-column COLUMN --length-column COLUMN"):
        load_data(path)
    named = DataConfig(prompt_column="chat", length_column=("n.out",))
    with pytest.raises(DataError, match=r"row 2: it has no prompt; .*--data\.on-bad-rows"):
        load_data(path, None, named)
    data = load_data(path, None, replace(named, on_bad_rows="skip"))
    assert lengths(data) == [("p3", 3), ("p4", 4)]
    assert "2 of 3 rows; left out: 1 it has no prompt" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [("path: x.parquet\n", "another table"), ("- 1\n", "another table"), ("{", "cannot be read")],
)
def test_another_tables_card_is_not_replaced(tmp_path, content, message):
    card_path(tmp_path / "t.parquet").write_text(content)
    with pytest.raises(ConfigError, match=message):
        refuse_foreign_card(tmp_path / "t.parquet")
