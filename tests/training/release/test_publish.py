"""Publishing: the table of held-out prompts, and the prompts that a score is calibrated on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tokenizers import Tokenizer

from scoring_service.bundle import ModelBundle
from training.config import DataConfig, TrainConfig
from training.data.labels import observed, texts
from training.data.prepared import Prepared, prepare
from training.data.records import read_table
from training.data.splits import Splits
from training.data.synthetic import generate
from training.evaluation.calibration import MIN_ROWS, calibrate
from training.export.scores import score_prompts
from training.release import publish


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """Two labels, of which every fifth prompt has one only."""
    rows = [
        {"prompt": r.prompt, "output_tokens": r.output_tokens + 5, "reasoning_tokens": n % 5}
        for n, r in enumerate(generate(500, seed=1)[0])
    ]
    path = tmp_path / "logs.parquet"
    pd.DataFrame(rows).to_parquet(path)
    data = DataConfig(dataset=str(path), heads=("reasoning_tokens",))
    return prepare(TrainConfig(data=data), None)


def test_held_out_prompts_have_a_column_per_label_and_0_for_none(
    prepared: Prepared, tmp_path: Path
) -> None:
    publish.write_test_prompts(tmp_path / "test.parquet", prepared)
    table = read_table(tmp_path / "test.parquet")
    assert list(table.columns) == ["prompt", "output_tokens", "reasoning_tokens", "model"]
    assert table["prompt"].tolist() == texts(prepared.splits.test)
    assert table["output_tokens"].tolist() == observed(prepared.splits.test).tolist()
    (head,) = prepared.heads
    known = table[table["reasoning_tokens"] > 0]
    assert known["reasoning_tokens"].tolist() == observed(head.splits.test).tolist()
    assert 0 < len(known) < len(table)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_the_curves_are_of_the_served_model_on_the_calibration_prompts(
    prepared: Prepared, tiny_bundle: ModelBundle, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_bundle.tokenizer_path))
    tokenizer.enable_truncation(tiny_bundle.manifest.max_prompt_tokens)
    items = [replace(item, model="llama") for item in prepared.splits.train[:80]]
    splits = Splits(train=[], val=[], test=[], calibration=items)
    folder = tiny_bundle.model_path("auto").parent
    found = publish._calibration(folder, splits, tokenizer)
    scores = score_prompts(tiny_bundle, texts(items))
    assert found == {"llama": calibrate(scores, observed(items))}
    few = replace(splits, calibration=items[: MIN_ROWS - 1])
    assert publish._calibration(folder, few, tokenizer) == {}
    assert "no calibration: fewer than 50 prompts" in caplog.text


def test_a_bundle_that_beats_the_champion_takes_its_place(
    prepared: Prepared, tiny_bundle: ModelBundle, make_store: Callable[[], object]
) -> None:
    metrics = {"tau_b": 0.5, "tau_b_ci": [0.4, 0.6]}
    bundle = replace(tiny_bundle, manifest=replace(tiny_bundle.manifest, metrics=metrics))
    store = make_store()
    version, verdict = publish.register(store, bundle, prepared.splits)  # type: ignore[arg-type]
    assert (version, verdict.promoted) == ("1", True)
    assert vars(store)["promoted"] == [("tiny", "1")]
    chance = replace(bundle, manifest=replace(bundle.manifest, metrics={}))
    assert not publish.register(store, chance, prepared.splits)[1].promoted  # type: ignore[arg-type]
    assert len(vars(store)["promoted"]) == 1


@pytest.fixture
def make_store() -> Callable[[], object]:
    class Store:
        """A registry without a champion."""

        def __init__(self) -> None:
            self.promoted: list[tuple[str, str]] = []

        def champion(self, name: str) -> None:
            return None

        def register(self, name: str, bundle: str, tags: dict[str, str]) -> str:
            assert tags["verdict"]
            return "1"

        def promote(self, name: str, version: str) -> None:
            self.promoted.append((name, version))

    return Store
