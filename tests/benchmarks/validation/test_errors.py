import numpy as np
import pytest

from benchmarks.validation.errors import against_repeats
from scheduler_adapters.workload.requests import Floats


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
