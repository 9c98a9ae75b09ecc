"""Calibrated lengths: coverage holds on rows the curves have never seen, for any target model."""

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.bundle import LengthCurve, ModelBundle
from lengthwise.errors import ConfigError, DataError
from tests.training.prompts import labelled
from training.evaluation import calibration
from training.evaluation.calibration import QUANTILES, calibrate, coverage, per_response


def model_rows(count: int, seed: int, *, slope: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores on an arbitrary scale and lengths whose spread grows with the score."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 3, count)
    logs = 4 + slope * np.tanh(scores / 3) + rng.normal(0, 0.3 + 0.2 * (scores > 0), count)
    return scores, np.maximum(1, np.rint(np.exp(logs)))


@pytest.mark.parametrize("slope", [1.0, -0.2, 0.0])
def test_coverage_is_within_three_points_on_new_rows(slope: float) -> None:
    # Even where the score says nothing, or the wrong thing, about this model.
    entry = calibrate(*model_rows(3000, 0, slope=slope))
    shares = coverage(entry, *model_rows(20_000, 1, slope=slope))
    for quantile in QUANTILES:
        assert shares[str(quantile)] == pytest.approx(quantile, abs=0.03)


def test_curves_rise_with_the_score_and_never_cross() -> None:
    # Shifted separately, curves of few rows may cross.
    for rows, seed in [(150, 3), *((50, seed) for seed in range(20))]:
        curve = LengthCurve.parse("m", calibrate(*model_rows(rows, seed)))
        quantiles = np.array([curve.quantiles[q] for q in QUANTILES])
        assert (np.diff(quantiles, axis=0) >= 0).all()
        assert np.all(np.diff(curve.expected) >= 0)
        assert curve.at(-1e9).expected_tokens == curve.expected[0]


def test_quantiles_are_not_spread_too_far_apart() -> None:
    errors = []
    for seed in range(16):
        shares = coverage(calibrate(*model_rows(500, seed)), *model_rows(1000, 1000 + seed))
        errors.append([shares[str(q)] - q for q in QUANTILES])
    low, high = np.mean(errors, axis=0)[[0, -1]]
    assert abs(high - low) / 2 < 0.007  # .012 with the misses of curves from half of the rows.


def test_each_response_of_a_prompt_is_a_row() -> None:
    scores, lengths = per_response(np.array([0.5, 2.0]), labelled({"a": (3, 5), "b": (7,)}))
    assert scores.tolist() == [0.5, 0.5, 2.0]
    assert lengths.tolist() == [3, 5, 7]


def test_fifty_rows_are_enough_and_knots_grow_with_the_rows() -> None:
    for rows, knots in ((50, 2), (400, 10), (3000, 16)):
        entry = calibrate(*model_rows(rows, 0))
        assert len(entry["scores"]) == len(entry["mean"]) == knots
        assert entry["rows"] == rows
    with pytest.raises(DataError, match="49 rows to calibrate with"):
        calibrate(*model_rows(49, 0))


def test_a_knot_is_the_median_score_and_mean_length_of_its_rows() -> None:
    scores = np.random.default_rng(0).permutation(80.0 + np.arange(80))
    entry = calibrate(scores, np.where(scores < 120, 10.0, 1000.0))
    assert entry["scores"] == [99.5, 139.5]
    assert entry["mean"] == [10.0, 1000.0]


def test_a_length_at_the_quantile_is_covered() -> None:
    entry = {"scores": [0.0, 1.0], "mean": [5.0, 5.0], "quantiles": {"0.5": [5.0, 5.0]}}
    assert coverage(entry, np.zeros(4), np.array([4.0, 5.0, 5.0, 6.0])) == {"0.5": 0.75}


def test_the_conformal_shift_of_a_worked_example() -> None:
    misses = np.arange(1.0, 10.0)
    # The corrected level .5 * 10 / 9 lies between the fifth and the sixth of nine: take the sixth.
    assert calibration._conformal(misses, 0.5) == 6.0
    assert calibration._conformal(misses, 0.1) == 2.0
    assert calibration._conformal(misses, 0.95) == 9.0


def test_a_calibration_is_asked_for_by_name_or_the_first(tiny_bundle: ModelBundle) -> None:
    manifest = replace(tiny_bundle.manifest, calibration={"a": {}, "b": {}})
    assert [calibration.target_of(manifest, name) for name in ("b", "a", None)] == ["b", "a", "a"]
    assert calibration.target_of(replace(manifest, calibration={}), None) is None
    with pytest.raises(ConfigError, match="no calibration for 'c', but for a, b"):
        calibration.target_of(manifest, "c")
    with pytest.raises(ConfigError, match="but for none"):
        calibration.target_of(replace(manifest, calibration={}), "c")
