"""The hub: folders load as its data sets do, what was pushed loads again, errors are lines."""

import logging
from pathlib import Path
from unittest.mock import Mock

import datasets
import httpx
import pytest
from datasets import Dataset, DatasetDict
from huggingface_hub import DatasetCard, constants

from lengthwise.errors import DataError
from tests.training.drawn import generate
from training.config import DataConfig
from training.data.cards import load_data
from training.data.hub import is_hub_name, load_hub, push_to_hub, responses_of

ROWS = {"prompt": ["a", "b", "c"], "output_tokens": [3, 5, 7]}


def lengths(name: str, columns: DataConfig | None = None) -> list[tuple[str, int]]:
    records = load_data(name, None, columns).records
    return [(record["prompt"], *record["output_tokens"]) for record in records]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of Parquet files by split, with the card that makes it a data set."""
    place = tmp_path / "sets"
    (place / "data").mkdir(parents=True)
    for split in ("train", "test"):
        rows = Dataset.from_dict({**ROWS, "prompt": [f"{split} {n}" for n in range(3)]})
        rows.to_parquet(place / "data" / f"{split}-0.parquet")
    (place / "README.md").write_text("---\nlicense: mit\n---\n")
    return place


def test_a_folder_and_a_split_of_it_are_read(folder: Path, tmp_path: Path) -> None:
    assert lengths(str(folder)) == [("train 0", 3), ("train 1", 5), ("train 2", 7)]
    assert lengths(f"hf:{folder}:test")[0] == ("test 0", 3)
    assert load_data(f"hf:{folder}:test").card.id == "sets-test"
    with pytest.raises(DataError, match=r"other.*; check the name, configuration and split"):
        load_hub(f"hf:{folder}:other")
    (tmp_path / "README.md").write_text("# Logs of March\n")
    assert not is_hub_name(str(tmp_path))  # a folder of logs


def test_saved_data_sets_are_read_by_the_columns_that_are_named(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": text}] for text in "xyz"]
    rows = Dataset.from_dict({"chat": chats, "usage": [{"out": n} for n in (4, 5, 6)]})
    rows.save_to_disk(tmp_path / "one")
    DatasetDict({"train": rows, "test": rows.take(1)}).save_to_disk(tmp_path / "two")
    named = DataConfig(prompt_column="chat", length_column=("usage.out",))
    assert lengths(str(tmp_path / "one"), named) == [("x", 4), ("y", 5), ("z", 6)]
    assert lengths(f"hf:{tmp_path}/two:test", named) == [("x", 4)]
    with pytest.raises(DataError, match=r"no column 'prompt'"):
        load_data(str(tmp_path / "two"))


def test_without_a_way_to_the_hub_a_name_ends_in_one_line(monkeypatch, caplog):
    def unreachable(*_: object, **__: object) -> None:
        raise httpx.ConnectError("no network")

    monkeypatch.setattr(httpx, "head", unreachable)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(
            DataError, match=r"hf:org/name/short:test.*; check the network, or"
        ) as caught,
    ):
        load_hub("hf:org/name/short:test")
    assert "\n" not in str(caught.value)
    assert "cannot be reached (no network)" in caplog.text
    assert not datasets.config.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE


def test_offline_mode_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(httpx, "head", pytest.fail)
    with pytest.raises(DataError, match="hf:org/name"):
        load_hub("hf:org/name")


def test_what_is_pushed_loads_again_with_its_card(make_card, tmp_path, monkeypatch):
    data = load_data(str(make_card(generate(40, seed=1, samples=2)[0], notes="Own answers.")))
    cards: list[str] = []

    def push(rows: Dataset, repository: str) -> None:
        DatasetDict({"train": rows}).save_to_disk(tmp_path / repository)

    monkeypatch.setattr(Dataset, "push_to_hub", push)
    monkeypatch.setattr(DatasetCard, "load", lambda _: DatasetCard("---\nlicense: mit\n---\n"))
    monkeypatch.setattr(DatasetCard, "push_to_hub", lambda card, _: cards.append(str(card)))
    assert push_to_hub(data.records, data.card.about, "pushed") == "hf:pushed:train"
    again = load_data(str(tmp_path / "pushed"))
    assert again.records["output_tokens"][:] == data.records["output_tokens"][:]
    assert again.records["model"][:] == data.records["model"][:]
    assert "license: mit" in cards[0]
    assert "Own answers." in cards[0]
    monkeypatch.setattr(Dataset, "push_to_hub", Mock(side_effect=ConnectionError("no way")))
    with pytest.raises(DataError, match=r"pushed cannot be written \(no way\); check"):
        push_to_hub(data.records, "", "pushed")


def test_samples_and_parts_of_lengths_are_rows_of_their_own() -> None:
    from training.data.records import FieldMap, checked, stored

    fields = FieldMap(output_tokens=("first", "second"), reasoning_tokens="thought")
    rows = [{"prompt": "a", "first": 9, "second": 8, "thought": 2}]
    rows += [{"prompt": "b", "first": 4, "second": 0, "thought": 0}]
    made = responses_of(stored(lambda _: checked(enumerate(rows), fields), "samples")[0])
    found = [(r["prompt"], r["sample"], r["output_tokens"], r["reasoning_tokens"]) for r in made]
    assert found == [("a", 0, 9, 2), ("a", 1, 8, 2), ("b", 0, 4, 0)]
