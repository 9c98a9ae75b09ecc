"""What one run predicts of others; here the engine is a simulator of known step times."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.policy import load_policy
from scheduler_adapters.validation.errors import METRICS
from scheduler_adapters.validation.graph_fit import fit_graphs
from scheduler_adapters.validation.prediction import predict
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
