"""A score becomes tokens by linear interpolation."""

import pytest

from lengthwise.calibration import LengthCurve
from lengthwise.errors import BundleError

CURVE = {"scores": [0, 1, 3], "quantiles": {"0.9": [20, 40, 80], "0.5": [10, 20, 40]}}


@pytest.mark.parametrize(
    ("score", "expected"), [(-9, 10), (0, 10), (0.5, 15), (1, 20), (2, 30), (3, 40), (99, 40)]
)
def test_the_estimate_is_linear_between_the_points_and_constant_beyond(score, expected):
    estimate = LengthCurve.parse("llm", CURVE).at(score)
    assert estimate.expected_tokens == expected
    assert estimate.quantiles == {0.5: expected, 0.9: 2 * expected}
    assert list(estimate.quantiles) == [0.5, 0.9]


def test_the_mean_is_the_expectation_where_it_is_given():
    assert LengthCurve.parse("llm", CURVE | {"mean": [1, 2, 3]}).at(1).expected_tokens == 2


def test_equal_scores_take_the_last_of_them():
    curve = LengthCurve.parse("llm", {"scores": [0, 1, 1], "quantiles": {"0.5": [1, 2, 9]}})
    assert curve.at(1).expected_tokens == 9


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"scores": [0, 1]},
        {"scores": [], "quantiles": {"0.5": []}},
        {"scores": [1, 0], "quantiles": {"0.5": [1, 2]}},
        {"scores": [0, 1], "quantiles": {"0.5": [1]}},
        {"scores": [0, 1], "quantiles": {"half": [1, 2]}},
        {"scores": [0, 1], "quantiles": {"0.9": [1, 2]}},
        {"scores": [0, 1], "quantiles": {"1.5": [1, 2], "0.5": [1, 2]}},
        {"scores": [0, 1], "quantiles": {"0.5": [-1, 2]}},
    ],
)
def test_a_malformed_curve_is_refused(broken):
    with pytest.raises(BundleError, match=r"'llm' .*calibrate again"):
        LengthCurve.parse("llm", broken)
