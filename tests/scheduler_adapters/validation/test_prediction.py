"""What one run predicts of others; here the engine is a simulator of known step times."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.benchmarks.transformers_report import Report
from scheduler_adapters.engines.transformers_batching.in_process import GRAPHS
from scheduler_adapters.policy import load_policy
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.validation.errors import METRICS
from scheduler_adapters.validation.prediction import GraphFit, Served, _size, fit_graphs, predict
from scheduler_adapters.validation.step_fit import EngineLatency
from scheduler_adapters.workload.requests import Requests
from tests.scheduler_adapters.validation.noting_engine import requests_of, serve


@pytest.fixture
def requests() -> Requests:
    return requests_of(60)


def test_steps_of_one_policy_predict_all_of_them(requests: Requests) -> None:
    fit = fit_graphs(serve(requests, "fcfs").steps, has_graphs=False)
    for name in ("fcfs", "pars", "sarathi"):
        predicted, _ = predict(serve(requests, name), load_policy(name), fit)
        assert max(predicted[f"{metric}_mape_fraction"] for metric in METRICS) < 1e-6


def test_nothing_is_fitted_to_the_runs_that_are_predicted(requests: Requests) -> None:
    fit = fit_graphs(serve(requests, "fcfs").steps, has_graphs=False)
    predicted, _ = predict(serve(requests, "pars", slowness=2.0), load_policy("pars"), fit)
    assert predicted["e2e_bias_fraction"] == pytest.approx(-0.5, abs=1e-6)
    assert predicted["e2e_mape_fraction"] == pytest.approx(0.5, abs=1e-6)


def test_requests_are_compared_by_name_not_by_place(requests: Requests) -> None:
    run = serve(requests, "oracle")
    backwards = serve(requests.take(np.arange(len(requests))[::-1]), "oracle").timeline
    fit = fit_graphs(run.steps, has_graphs=False)
    predicted, table = predict(replace(run, timeline=backwards), load_policy("oracle"), fit)
    assert predicted["e2e_mape_fraction"] < 1e-6
    assert (table.index == requests.request_id).all()
    assert table.e2e_measured_s.to_numpy() == pytest.approx(table.e2e_simulated_s.to_numpy())


CAPTURE_S = 0.08


@pytest.fixture
def burst() -> Requests:
    return requests_of(150, 60)


def serve_captured(requests: Requests, policy: str) -> Served:
    return serve(requests, policy, capture_s=CAPTURE_S)


def test_captures_of_one_policy_predict_those_of_another(burst: Requests) -> None:
    run = serve_captured(burst, "fcfs")
    fit = fit_graphs(run.steps, has_graphs=True)
    assert fit.num_captures == sum(step.seconds > CAPTURE_S for step in run.steps)
    assert fit.num_captures > 5
    assert fit.capture_s == pytest.approx(CAPTURE_S, rel=0.1)
    for name in ("fcfs", "pars"):
        row, _ = predict(serve_captured(burst, name), load_policy(name), fit)
        assert max(row[f"{metric}_mape_fraction"] for metric in METRICS) < 0.01


def test_context_has_its_price_only_where_captures_are_left_out(burst: Requests) -> None:
    """They come early, while contexts are short."""
    steps = serve_captured(burst, "fcfs").steps
    left_out, counted = (
        fit_graphs(steps, has_graphs=has_graphs).steps.latency for has_graphs in (True, False)
    )
    assert left_out.per_context_token_s == pytest.approx(1e-6, rel=0.01)
    assert counted.per_context_token_s < 0.7e-6


def test_every_simulation_starts_without_graphs(burst: Requests) -> None:
    fit = fit_graphs(serve_captured(burst, "fcfs").steps, has_graphs=True)
    first, again = fit.latency(), fit.latency()
    step = (3, 300, [(0, 20)])
    assert first.step_s(*step) - fit.steps.latency.step_s(*step) == pytest.approx(fit.capture_s)
    assert first.step_s(*step) == fit.steps.latency.step_s(*step)
    assert again.step_s(*step) > first.step_s(*step)


def test_an_engine_without_graphs_is_fitted_with_all_its_steps(burst: Requests) -> None:
    steps = serve_captured(burst, "fcfs").steps
    fit = fit_graphs(steps, has_graphs=False)
    assert fit.steps.num_steps == len(steps)
    assert isinstance(fit.latency(), EngineLatency)


def test_the_table_tells_of_captures(burst: Requests) -> None:
    report = Report({}, None)
    report.add("fcfs", serve_captured(burst, "fcfs"))
    assert isinstance(report.fit, GraphFit)
    assert f"and {report.fit.num_captures} captures of CUDA graphs (0.0" in report.text()


@pytest.mark.slow  # importing the engine takes seconds
@pytest.mark.filterwarnings("ignore")
def test_sizes_are_told_apart_where_the_engine_pads_them_to_others() -> None:
    padding = pytest.importorskip("transformers.generation.continuous_batching.utils")
    random = np.random.default_rng(2)
    for _ in range(200):
        decodes, chunk, before = random.integers(0, [65, 448, 3000]).tolist()
        cached = decodes * int(random.integers(1, 300))
        pairs = chunk * (before + chunk / 2)
        has_chunk = chunk > 0
        step = StepRecord(decodes, cached + decodes, has_chunk, chunk, pairs, 0.01)
        padded = (
            padding.pad_to_interval(decodes + chunk, GRAPHS["q_padding_interval_size"], 10**6),
            padding.pad_to_interval(
                cached + before * has_chunk, GRAPHS["kv_padding_interval_size"], 10**6
            ),
        )
        tokens, past = _size(step)
        if decodes + chunk:
            assert (64 * tokens, 2048 * past) == padded
