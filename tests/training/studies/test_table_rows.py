"""Rows of a table: means over seeds, CPU to a goal, and the paper's figures where it has any."""

from __future__ import annotations

import math
from typing import Any

import pytest

from training.config import LossConfig, TrainConfig
from training.studies import table_rows
from training.studies.table_rows import cpu_to_reach, paper_figures, train_seeds

CURVE = [{"val/tau_b": 0.3, "cpu_s": 1.0}, {"val/tau_b": 0.5, "cpu_s": 2.0}]


def test_a_row_is_the_mean_over_its_seeds_with_the_curve_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(method: str, config: TrainConfig, *_: Any) -> dict[str, Any]:
        seed = config.seed
        return {"tau_b": 0.5 + seed / 10, "cpu_s": 2.0 + seed, "mlflow_run_id": f"run {seed}"}

    monkeypatch.setattr(table_rows, "train_row", train)
    row = train_seeds("m", TrainConfig(seed=9), None, "mlruns", 3)  # type: ignore[arg-type]
    assert row["tau_b"] == pytest.approx(0.6)
    assert row["tau_b_by_seed"] == pytest.approx([0.5, 0.6, 0.7])
    assert (row["cpu_s"], row["mlflow_run_id"]) == (3.0, "run 0")


def test_the_goal_is_the_others_best_and_may_never_be_reached() -> None:
    fast = {"history": CURVE}
    slow = {"history": [{"val/tau_b": 0.4, "cpu_s": 7.0}, {"val/tau_b": 0.2, "cpu_s": 9.0}]}
    assert cpu_to_reach(fast, slow) == {"val_tau_b": 0.4, "ours": 2.0, "theirs": 7.0}
    assert math.isnan(cpu_to_reach(slow, fast)["ours"])


@pytest.mark.parametrize(
    ("objective", "delta", "paper"),
    [("pairs", 0.2, 0.96), ("pairs", 0.0, 0.93), ("l1", 0.2, 0.70), ("ranknet", 0.2, None)],
)
def test_the_papers_figure_stands_beside_its_own_methods_only(
    objective: str, delta: float, paper: float | None
) -> None:
    found = paper_figures(LossConfig(objective=objective, delta=delta))
    assert (found[0] if found else None) == paper
