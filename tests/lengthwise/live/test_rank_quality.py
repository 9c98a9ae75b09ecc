"""Figures of a window of answers: equal to the slow ones, undefined without ground."""

import math

import numpy as np
import pytest

from lengthwise.agreement import tau_b
from lengthwise.bundle import LengthCurve
from lengthwise.live.rank_quality import WINDOW, Answer, RankQuality

CURVE = LengthCurve([-3, 0, 3], [1, 1, 1], {0.5: [10, 100, 1000], 0.9: [40, 400, 4000]})


def figures_of(answers):
    quality = RankQuality(CURVE)
    quality.add(answers)
    return quality.figures()


def drawn(random, count):
    """Return scores and lengths of tau_b .57 that keep to `CURVE`."""
    scores = random.uniform(-3, 3, count)
    median, most = (np.interp(scores, CURVE.scores, CURVE.quantiles[q]) for q in (0.5, 0.9))
    logs = np.log(median) + np.log(most / median) / 1.2816 * random.normal(size=count)
    return scores, np.exp(logs)


def test_tau_b_is_that_of_all_pairs_with_ties_by_chance():
    random = np.random.default_rng(0)
    scores, prompts = random.integers(9, size=(2, 100))
    lengths = np.round(np.exp(scores / 4 + random.normal(size=100)))
    found = figures_of(
        Answer(*one) for one in zip(scores, lengths, [False] * 100, prompts, strict=True)
    )
    assert found.tau_b == pytest.approx(tau_b(scores, lengths, ties_by_chance=True))
    ahead = found.tau_b - tau_b(prompts, lengths, ties_by_chance=True)
    assert sum(found.over_prompt) / 2 == pytest.approx(ahead)
    assert found.coverage[1] == pytest.approx(
        np.mean(lengths <= np.interp(scores, (0, 3), (400, 4000)))
    )


def test_the_interval_holds_the_true_value():
    random = np.random.default_rng(0)
    true = tau_b(*drawn(random, 100_000))
    found = [
        figures_of([Answer(*one) for one in zip(*drawn(random, 300), strict=True)]).interval
        for _ in range(100)
    ]
    assert 90 <= sum(low <= true <= high for low, high in found) < 100


def test_pairs_that_a_cut_leaves_open_do_not_count():
    whole = [Answer(n, n) for n in range(1, 20)]
    assert figures_of([*whole, Answer(0, 5, True)]).tau_b < figures_of(whole + whole[:1]).tau_b
    above = figures_of([*whole, Answer(99, 19, True)])
    assert above.tau_b == pytest.approx(1)  # it would go on: longer than all


def test_inversions_cost_the_difference_of_service_times():
    def served(tokens, started_s, queued_s=0.0):
        return Answer(1.0, tokens, False, 1, math.inf, queued_s, started_s, started_s + tokens)

    alone = [served(n, 1e6 + n * 1e3, 1e6 + n * 1e3) for n in range(1, 19)]
    found = figures_of([*alone, served(30, 1.0), served(10, 2.0)])
    assert found.costly_inversions == pytest.approx(1)
    found = figures_of([*alone, served(30, 1.0), served(10, 2.0), served(90, 3.0)])
    assert found.costly_inversions == pytest.approx(20 / (20 + 60 + 80))


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [Answer(math.nan, 5)] * 50,
        [Answer(1.0, math.inf), Answer(math.inf, 1), Answer(1, -1)] * 50,
        [Answer(n, 7) for n in range(50)],
        [Answer(n, 0, True) for n in range(50)],
    ],
)
def test_figures_without_ground_are_undefined(answers):
    assert math.isnan(figures_of(answers).tau_b)


def test_jumping_clocks_and_zero_lengths_are_no_errors():
    found = figures_of([Answer(n, n % 3, False, math.nan, 0, n, -n, n - 99) for n in range(2000)])
    assert found.num_answers == WINDOW
    assert math.isfinite(found.tau_b)
