"""The paper's tables: every row trained alike, its cost stated, its run on record."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.studies import objectives
from benchmarks.studies.objectives import train_seeds
from tests.training.drawn import generate
from training.config import TrainConfig

Capture = pytest.CaptureFixture[str]


def run(backbone: Path, card: Path, folder: Path, capsys: Capture, *more: str) -> dict[str, Any]:
    """The result of a study on a tiny backbone."""
    own = ["--data-dir", str(folder), "--mlruns-dir", str(folder / "mlruns"), "--threads", "1"]
    fixed = ["--dataset", str(card), "--backbone", str(backbone), "--epochs", "1", "--json"]
    assert main(["objectives", *own, *fixed, *more]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.slow
def test_every_row_sees_as_many_prompts_and_says_what_it_cost(
    tiny_bert, make_card, tmp_path, capsys
):
    card = make_card(generate(300, seed=5)[0])
    result = run(tiny_bert, card, tmp_path, capsys, "--prompts", "128")
    rows = result["methods"]
    assert len({row["objective"] for row in rows}) == 6
    assert {row["encoder_passes"] for row in rows} == {128}
    assert all(row["cpu_s"] > 0 for row in rows)
    assert len({row["mlflow_run_id"] for row in rows}) == 6
    paper = {row["objective"]: row["paper"] for row in rows}
    assert (paper["pairs"], paper["ranknet"]) == ([0.96, 0.75, 0.61], None)
    found = [(row["delta"], (row["paper"] or [None])[0]) for row in result["delta"]]
    assert found == [(0.2, 0.96), (0.2, None), (0.0, 0.93), (0.0, None)]
    result["ceiling"] = math.nan if result["ceiling"] is None else result["ceiling"]
    objectives._print(result)
    assert "Table II" in capsys.readouterr().out


def test_a_row_is_the_mean_of_its_seeds_with_the_firsts_curve(monkeypatch):
    def train(method: str, config: TrainConfig, *_: Any) -> dict[str, Any]:
        seed = config.seed
        return {"tau_b": 0.5 + seed / 10, "cpu_s": 2.0 + seed, "mlflow_run_id": f"run {seed}"}

    monkeypatch.setattr(objectives, "train_row", train)
    row = train_seeds("m", TrainConfig(seed=9), None, "mlruns", 3)  # type: ignore[arg-type]
    assert row["tau_b"] == pytest.approx(0.6)
    assert row["tau_b_by_seed"] == pytest.approx([0.5, 0.6, 0.7])
    assert (row["cpu_s"], row["mlflow_run_id"]) == (3.0, "run 0")
