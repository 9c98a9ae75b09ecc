"""The whole trial of the simulator on an engine in plain Python, whose step times are known."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.validation.engine_trial import (
    METRICS,
    StepRecorder,
    TrialConfig,
    against_repeats,
    measure,
    order_in_pairs,
    run_trial,
)
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.timeline.observer import EngineObserver, overriding
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.workload.requests import Floats, make_requests
from tests.benchmarks.validation.plain_engine import PlainEngine

LIMITS = {
    **{"kv_blocks": 4000, "max_num_seqs": 4, "max_tokens": 64, "block_tokens": 16},
    "watermark_fraction": 0.0,
}
LATENCY = AffineLatency(base_s=0.01, per_token_s=1e-4, per_context_token_s=1e-6)
TRIAL = TrialConfig(pieces=4, repeats=2)


@pytest.fixture
def requests():
    dice = np.random.default_rng(3)
    sizes = dice.integers(4, 60, 80)
    return make_requests(
        prompt_tokens=dice.integers(4, 100, 80),
        output_tokens=sizes,
        arrival_s=np.cumsum(dice.exponential(0.04, 80)) + 50.0,
        scores=sizes * dice.lognormal(0.0, 0.4, 80),
    )


def test_a_simulator_of_known_step_times_is_the_engine(requests):
    flat = run_trial(PlainEngine(pars(), LIMITS, LATENCY), requests, "pars", pars, TRIAL)
    assert (flat["policy"], flat["clock"]) == ("pars", "wall")
    assert (flat["num_requests"], flat["repeats"]) == (40, 2)
    assert flat["step_mape"] < 1e-6
    for metric in METRICS:
        assert flat[f"{metric}_mape"] == pytest.approx(0.0, abs=1e-6)
        assert flat[f"{metric}_floor_mape"] == 0.0


def test_an_engine_under_another_policy_than_simulated_is_found(requests):
    found = run_trial(PlainEngine(pars(), LIMITS, LATENCY), requests, "named", FCFS, TRIAL)
    assert found["ttft_mape"] > 0.1


def test_steps_are_fitted_to_pieces_other_than_those_compared(requests):
    _, runs, steps = measure(PlainEngine(FCFS(), LIMITS, LATENCY), requests, TRIAL)
    assert [len(run) for run in runs] == [2, 2]
    assert [float(each.requests.arrival_s[0]) for each in runs[0]] == [0.0, 0.0]
    served = np.concatenate([each.requests.request_id for each in runs[0]])
    assert list(served) == list(requests.request_id[np.r_[20:40, 60:80]])
    # A piece for the fit that is cut short leaves fewer steps to fit to.
    cut = replace(requests, output_tokens=np.where(np.arange(80) < 20, 4, requests.output_tokens))
    _, _, fewer = measure(PlainEngine(FCFS(), LIMITS, LATENCY), cut, TRIAL)
    assert len(fewer) < len(steps)


@pytest.mark.parametrize("num_pieces", [2, 7, 10])
def test_what_is_compared_is_served_right_after_what_is_fitted(num_pieces):
    dice = np.random.default_rng(0)
    orders = [order_in_pairs(num_pieces, dice) for _ in range(8)]
    for order in orders:
        assert sorted(order) == list(range(num_pieces))
        for compared in range(1, num_pieces, 2):
            assert order.index(compared) == order.index(compared - 1) + 1
    assert num_pieces == 2 or len(set(map(tuple, orders))) > 1


def test_steps_stay_in_order_and_cost_only_those_who_want_them():
    recorder, deaf, step = StepRecorder(), EngineObserver(), StepRecord(1, 5, 0, 0, 0.0, 0.01)
    assert overriding([deaf, recorder], "measured") == [recorder]
    recorder.measured(step)
    assert recorder.steps == [step]


def noisy_runs(truth: Floats, repeats: int, noise: float = 0.1) -> Floats:
    return truth * (1 + noise * np.random.default_rng(0).standard_normal((repeats, len(truth))))


def test_two_runs_by_hand():
    found = against_repeats(np.array([2.0]), np.array([[1.0], [4.0]]))
    assert found.mape == pytest.approx(0.5 / 2.5)
    assert found.single_run_mape == pytest.approx((1 / 1 + 2 / 4) / 2)
    assert found.floor_mape == pytest.approx((3 / 4 + 3 / 1) / 2)
    assert found.bias == pytest.approx(-0.2)
    assert (found.mean_s_measured, found.mean_s_simulated) == (2.5, 2.0)


@pytest.mark.parametrize("repeats", [2, 4, 8])
def test_a_perfect_simulator_errs_by_the_noise_of_the_mean(repeats):
    truth = np.linspace(1.0, 5.0, 4000)
    found = against_repeats(truth, noisy_runs(truth, repeats))
    assert found.floor_mape is not None
    assert found.mape == pytest.approx(found.noise_mape, rel=0.05)
    assert found.mape < found.single_run_mape < found.floor_mape


def test_noise_does_not_hide_an_error_of_the_simulator():
    truth = np.linspace(1.0, 5.0, 4000)
    found = against_repeats(1.2 * truth, noisy_runs(truth, repeats=4))
    assert found.mape == pytest.approx(0.2, rel=0.05)
    assert found.bias == pytest.approx(0.2, rel=0.05)


def test_one_run_says_nothing_of_its_own_noise():
    found = against_repeats(np.array([1.0, 2.0]), np.array([[1.0, 4.0]]))
    assert found.mape == found.single_run_mape == 0.25
    assert found.floor_mape is None
    assert found.noise_mape is None


def test_requests_without_the_metric_do_not_count():
    nothing = float("nan")
    found = against_repeats(np.array([1.0, nothing]), np.array([[2.0, nothing], [2.0, nothing]]))
    assert (found.mape, found.floor_mape) == (0.5, 0.0)
