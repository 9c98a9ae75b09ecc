"""The hub: folders load as its data sets do, errors are lines."""

import logging
from pathlib import Path

import datasets
import httpx
import pytest
from datasets import Dataset, DatasetDict
from huggingface_hub import constants

from lengthwise.errors import DataError
from training.config import DataConfig
from training.data.cards import load_data
from training.data.hub import is_hub_name, load_hub

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
