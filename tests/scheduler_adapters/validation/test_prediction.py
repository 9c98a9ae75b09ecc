"""What one run predicts of others; here the engine is a simulator of known step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scheduler_adapters.commands.bench.transformers_report import Report
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.steps import Chunk, StepRecord
from scheduler_adapters.validation.errors import METRICS
from scheduler_adapters.validation.graph_fit import fit_graphs
from scheduler_adapters.validation.prediction import Served, predict
from scheduler_adapters.workload.requests import Requests, make_requests


@dataclass(kw_only=True)
class Noting(LatencyModel):
    """Step times that an engine might have, and a note of each."""

    slowness: float = 1.0
    steps: list[StepRecord] = field(default_factory=list)

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens = sum(chunk for _, chunk in prefills)
        pairs = sum(chunk * (before + chunk / 2) for before, chunk in prefills)
        seconds = 0.01 + 1e-4 * num_decodes + 1e-6 * decode_context + 2e-5 * tokens + 1e-8 * pairs
        seconds *= self.slowness
        sizes = (num_decodes, decode_context, len(prefills), tokens, pairs)
        self.steps.append(StepRecord(*sizes, seconds))
        return seconds


def instance_with(latency: LatencyModel) -> Instance:
    return Instance(latency=latency, kv_blocks=4000, max_num_seqs=8, max_tokens=64)


@pytest.fixture
def requests() -> Requests:
    random = np.random.default_rng(5)
    lengths = random.permutation(60) * 3 + 1
    return make_requests(
        prompt_tokens=random.integers(2, 100, 60), output_tokens=lengths, scores=lengths
    )


def serve(requests: Requests, policy: str, *, slowness: float = 1.0) -> Served:
    latency = Noting(slowness=slowness)
    timeline = simulate(requests, load_policy(policy), instance_with(latency))
    return Served(
        requests=requests, timeline=timeline, steps=latency.steps, instance_with=instance_with
    )


def test_steps_of_one_policy_predict_all_of_them(requests: Requests) -> None:
    fit = fit_graphs(serve(requests, "fcfs").steps, has_graphs=False)
    for name in ("fcfs", "pars", "sarathi"):
        predicted = predict(serve(requests, name), load_policy(name), fit)
        assert max(predicted.errors[metric].mape_fraction for metric in METRICS) < 1e-6


def test_nothing_is_fitted_to_the_runs_that_are_predicted(requests: Requests) -> None:
    fit = fit_graphs(serve(requests, "fcfs").steps, has_graphs=False)
    predicted = predict(serve(requests, "pars", slowness=2.0), load_policy("pars"), fit)
    assert predicted.errors["e2e"].bias_fraction == pytest.approx(-0.5, abs=1e-6)
    assert predicted.to_row()["e2e_mape_fraction"] == pytest.approx(0.5, abs=1e-6)


def test_requests_are_compared_by_name_not_by_place(requests: Requests) -> None:
    run = serve(requests, "oracle")
    backwards = serve(requests.take(np.arange(len(requests))[::-1]), "oracle").timeline
    fit = fit_graphs(run.steps, has_graphs=False)
    predicted = predict(replace(run, timeline=backwards), load_policy("oracle"), fit)
    assert predicted.errors["e2e"].mape_fraction < 1e-6
    table = predicted.per_request
    assert (table.index == requests.request_id).all()
    assert table.e2e_measured_s.to_numpy() == pytest.approx(table.e2e_simulated_s.to_numpy())


def test_figures_are_on_disk_after_each_run(requests: Requests, tmp_path: Path) -> None:
    report = Report({}, tmp_path)
    for count, name in enumerate(["fcfs", "pars"], start=1):
        report.add(name, serve(requests, name))
        assert len(pd.read_csv(tmp_path / "summary.csv")) == count
        assert len(pd.read_csv(tmp_path / "agreement.csv")) == count * len(requests)
        assert (tmp_path / "agreement.svg").exists()
    assert [row["is_fitted_on_itself"] for row in report.rows] == [True, False]
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
