"""A ranker that has drifted is found out, one that has not is left alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lengthwise.bundle import MANIFEST, ModelBundle
from tests.training.commands.conftest import MakeBundle, Training, draw_prompts
from training.__main__ import main
from training.data.records import PromptResponse

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def bundle(make_bundle: MakeBundle) -> ModelBundle:
    """The tiny ranker with the figures that a test split would have given it."""
    return make_bundle(0, metrics={"tau_b": 0.65, "tau_b_ci": [0.5, 0.7]})


@pytest.fixture
def monitor(bundle: ModelBundle, training: Training, tmp_path: Path) -> Training:
    """Runs the command on these rows; its status and what --json printed, or its error line."""

    def run(rows: list[PromptResponse], *settings: str) -> tuple[int, Any]:
        log = tmp_path / "log.parquet"
        pd.DataFrame(rows).to_parquet(log)
        return training("monitor", "--bundle", bundle.path, "--log", log, *settings)

    return run


def test_a_ranker_that_fits_its_log_holds_its_gate(monitor: Training, mlruns: Path) -> None:
    status, result = monitor(draw_prompts(300), "--window", "100")
    assert (status, result["verdict"], result["gate_tau_b"]) == (0, "holds", 0.5)
    assert (result["rows"], result["n"], len(result["windows"])) == (300, 100, 9)
    assert result["tau_b"] == result["windows"][-1]["tau_b"] > 0.5
    assert set(result["coverage"]) == {"0.5", "0.9"}

    from training.release.tracking import Store

    store = Store(mlruns)
    run = store.client.get_run(result["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.tags["verdict"] == result["reason"]
    history = store.client.get_metric_history(result["mlflow_run_id"], "monitor/tau_b")
    assert [(point.step, point.value) for point in history] == [
        (window["end_row"], window["tau_b"]) for window in result["windows"]
    ]


def test_drift_in_the_newest_rows_is_an_alarm(monitor: Training) -> None:
    rows = draw_prompts(300) + draw_prompts(100, drifted=True)
    status, result = monitor(rows, "--window", "100")
    assert (status, result["verdict"], result["certain"]) == (1, "below_gate", True)
    assert result["windows"][0]["tau_b"] > 0.5
    assert monitor(rows[:300], "--window", "100")[0] == 0


def test_a_gate_of_ones_own_and_what_may_be_chance(monitor: Training) -> None:
    rows = draw_prompts(60)
    _, result = monitor(rows)
    between = (result["tau_b"] + result["tau_b_ci"][1]) / 2
    status, uncertain = monitor(rows, "--gate-tau-b", str(between))
    assert (status, uncertain["verdict"], uncertain["certain"]) == (1, "below_gate", False)
    assert "may be chance" in uncertain["reason"]


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (draw_prompts(5), [], "5 rows with a length; give 20 or more"),
        ([replace(row, output_tokens=7) for row in draw_prompts(30)], [], "is undefined"),
        (draw_prompts(30), ["--window", "3"], "window is 3"),
        (draw_prompts(30), ["--gate-tau-b", "7"], "gate_tau_b is 7"),
        (draw_prompts(30), ["--length-column", "tokens"], "no column 'tokens'"),
        (draw_prompts(30), ["--length-column", "a", "b"], "names several columns"),
        (draw_prompts(30), ["--target-model", "gpt-9"], "but for tiny-llm"),
        (draw_prompts(30), ["--model-column", "model"], "add --model NAME"),
        (draw_prompts(30), ["--model", "gpt-9", "--model-column", "model"], "0 rows"),
    ],
)
def test_what_cannot_be_judged_is_one_line_and_logs_nothing(
    monitor: Training, mlruns: Path, rows: list[PromptResponse], settings: list[str], message: str
) -> None:
    before = sorted(mlruns.rglob("*"))
    status, line = monitor(rows, *settings)
    assert status == 2
    assert message in line
    assert sorted(mlruns.rglob("*")) == before


def test_a_bundle_without_a_test_figure_needs_a_gate(
    tiny_bundle: ModelBundle, tmp_path: Path, capsys: Capture
) -> None:
    log = tmp_path / "log.parquet"
    pd.DataFrame(draw_prompts(30)).to_parquet(log)
    assert json.loads((tiny_bundle.path / MANIFEST).read_text())["metrics"] == {}
    assert main(["monitor", "--bundle", str(tiny_bundle.path), "--log", str(log)]) == 2
    assert "give --gate-tau-b" in capsys.readouterr().err


def test_without_json_the_verdict_is_told_in_words(
    bundle: ModelBundle, mlruns: Path, tmp_path: Path, capsys: Capture
) -> None:
    log = tmp_path / "log.parquet"
    pd.DataFrame(draw_prompts(100)).to_parquet(log)
    options = ["--log", str(log), "--mlruns-dir", str(mlruns), "--window", "100"]
    assert main(["monitor", "--bundle", str(bundle.path), *options]) == 0
    assert "verdict           holds: " in capsys.readouterr().out
