"""Ranking metrics against values worked out by hand."""

import math

import numpy as np
import pytest

from lengthwise.agreement import tau_b
from training.evaluation.ranking_metrics import ceiling, tau_b_ci, tau_b_difference_ci


def test_the_interval_holds_the_estimate_and_shrinks_by_prompts() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(4, 1, 2000)
    scores = np.log(lengths) + rng.normal(0, 1, 2000)
    wide = tau_b_ci(scores[:200], lengths[:200])
    narrow = tau_b_ci(scores, lengths)
    assert wide[0] < tau_b(scores[:200], lengths[:200]) < wide[1]
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


def test_a_paired_difference_of_equal_rankings_is_nothing() -> None:
    lengths = np.arange(1, 50)
    assert tau_b_difference_ci(lengths, 2 * lengths, lengths) == (0.0, 0.0)


def test_the_ceiling_is_by_the_mean_answer_or_by_the_second() -> None:
    samples = [(10, 30, 4), (20, 20, 20), (30, 25, 90), (7,)]
    assert ceiling(samples) == pytest.approx(1.0)
    assert ceiling(samples, most=1) == pytest.approx(-1 / 3)
    assert math.isnan(ceiling(samples[3:]))
