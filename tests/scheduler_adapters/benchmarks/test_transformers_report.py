"""The figures of a burst: measured and simulated, on disk and as text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scheduler_adapters.benchmarks.transformers_report import Report
from scheduler_adapters.workload.requests import Requests
from tests.scheduler_adapters.validation.noting_engine import requests_of, serve


@pytest.fixture
def requests() -> Requests:
    return requests_of(60, user_class=["paying", "free"] * 30)


def test_figures_are_on_disk_after_each_run(requests: Requests, tmp_path: Path) -> None:
    report = Report({"again": {"policy": "fcfs"}}, tmp_path)
    for count, name in enumerate(["fcfs", "again"], start=1):
        report.add(name, serve(requests, "fcfs"))
        assert len(pd.read_csv(tmp_path / "summary.csv")) == count
        assert len(pd.read_csv(tmp_path / "agreement.csv")) == count * len(requests)
        assert (tmp_path / "agreement.svg").exists()
    assert [row["is_fitted_on_itself"] for row in report.rows] == [True, False]
    assert report.rows[1]["e2e_mape_fraction"] == pytest.approx(0.0, abs=1e-6)
    assert "only fcfs is fitted on itself" in report.text()


def test_what_was_measured_counts_where_nothing_can_be_simulated(
    requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    report, run = Report({}, None), serve(requests, "fcfs")
    report.add("fcfs", replace(run, steps=run.steps[:3]))
    assert report.fit is None
    assert "record more requests" in caplog.text
    assert report.rows[0]["num_finished"] == len(requests)
    assert "simulated" not in report.text()


def test_a_row_holds_what_was_measured_and_the_gaps_of_each_class(requests: Requests) -> None:
    report, run = Report({}, None), serve(requests, "fcfs")
    report.add("fcfs", run)
    (row,) = report.rows
    ttft_s = run.timeline.first_token_s - run.timeline.requests.arrival_s
    assert row["ttft_mean_s"] == pytest.approx(ttft_s.mean())
    assert row["e2e_p90_s"] == pytest.approx(np.percentile(run.timeline.finished_s, 90))
    assert row["makespan_s"] == pytest.approx(np.max(run.timeline.finished_s))
    assert row["simulated_ttft_mean_s"] == pytest.approx(row["ttft_mean_s"])
    assert 0 < row["tbt_p99_free_s"] < row["e2e_mean_s"]
    assert 0 < row["tbt_p99_paying_s"] < row["e2e_mean_s"]


def test_the_text_tells_how_far_the_simulation_is_off(requests: Requests) -> None:
    report = Report({}, None)
    report.add("fcfs", serve(requests, "fcfs"))
    report.add("pars", serve(requests, "pars", slowness=2.0))
    measured, simulated = report.text().split("\n\nsimulated, with step times fitted to ")
    assert "tbt_p99_paying_s" in measured.splitlines()[0]
    note, header, fcfs, pars = simulated.splitlines()
    num_steps = len(serve(requests, "fcfs").steps)
    assert note.startswith(f"the {num_steps:,} steps (0.0% off in the mean) under fcfs")
    assert header.split()[0] == "policy"
    errors = dict(zip(header.split(), pars.split(), strict=True))
    assert (errors["e2e_mape"], errors["e2e_bias"]) == ("50.0%", "-50.0%")
    assert dict(zip(header.split(), fcfs.split(), strict=True))["e2e_mape"] == "0.0%"
