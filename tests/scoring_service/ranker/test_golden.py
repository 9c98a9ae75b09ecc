"""A loaded model that does not score as the trained one did is refused."""

from __future__ import annotations

import pytest

from scoring_service.errors import BundleError
from scoring_service.ranker.golden import MAX_ABS_DIFF, MIN_TAU_B, check_golden

GOLDEN = {str(n): float(n) for n in range(10)}


def check(scores, precision, golden=GOLDEN):
    check_golden(golden, lambda prompts: scores, precision)


def test_fp32_must_meet_the_scores_within_a_share_of_their_spread():
    limit = 9 * MAX_ABS_DIFF
    check([n + 0.99 * limit for n in range(10)], "fp32")
    with pytest.raises(BundleError, match="score up to"):
        check([n - 1.01 * limit * (n == 3) for n in range(10)], "fp32")


def test_scores_that_lie_close_are_met_to_a_thousandth():
    golden = {"a": 0.0, "b": 0.1}
    check([0.0009, 0.1], "fp32", golden)
    with pytest.raises(BundleError):
        check([0.0011, 0.1], "fp32", golden)


def test_int8_must_keep_the_order():
    check([2.0 * n for n in range(10)], "int8")
    swapped = [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]  # 5 of 45 pairs: tau_b .78
    check(swapped, "int8")
    assert MIN_TAU_B == 0.6
    with pytest.raises(BundleError, match="another order"):
        check([5, 6, 7, 8, 9, 0, 1, 2, 3, 4], "int8")


def test_int8_that_scores_all_alike_is_refused():
    with pytest.raises(BundleError, match="tau_b nan"):
        check([1.0] * 10, "int8")


def test_one_prompt_has_no_order():
    check([99.0], "fp32", {"a": 0.0})
