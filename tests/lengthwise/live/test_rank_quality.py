"""Figures of a window of answers: equal to the slow ones, undefined without ground, alarmed."""

import math

import numpy as np
import pytest

from lengthwise.agreement import tau_b
from lengthwise.bundle import LengthCurve, Manifest
from lengthwise.live.rank_quality import WINDOW, Answer, Promise, RankQuality

CURVE = LengthCurve([-3, 0, 3], [1, 1, 1], {0.5: [10, 100, 1000], 0.9: [40, 400, 4000]})
PROMISE = Promise(0.5, CURVE, 2000)


def figures_of(answers):
    quality = RankQuality(Promise(curve=CURVE))
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


@pytest.mark.parametrize(
    ("shift", "kind"), [("none", None), ("shuffled", "order"), ("x2", "lengths")]
)
def test_shifts_raise_an_alarm_of_their_kind(shift, kind):
    random = np.random.default_rng(0)
    quality = RankQuality(PROMISE)
    for start in range(0, 3000, 50):
        scores, lengths = drawn(random, 50)
        if start >= 2000 and shift == "shuffled":
            random.shuffle(scores)
        if start >= 2000 and shift == "x2":
            lengths *= 2
        quality.add([Answer(*one) for one in zip(scores, lengths, strict=True)])
    assert (kind is None and not quality.alarms) or 2000 < quality.alarms[kind] <= 3000
    assert kind is None or quality.is_recent(kind)


def test_a_manifest_promises_what_its_label_allows():
    curve = {"scores": [0.0], "quantiles": {"0.5": [1.0], "0.9": [2.0]}, "rows": 300}
    text = {"name": "n", "label": "output_tokens", "label_tokenizer": "t", "max_prompt_tokens": 9}
    full = Manifest(**text, metrics={"tau_b_ci": [0.4, 0.6]}, calibration={"m": curve})
    assert Promise.of(full)[::2] == (0.4, 300)
    for more in ({"label": "reasoning_tokens"}, {"metrics": {"tau_b": None}, "calibration": {}}):
        assert math.isnan(Promise.of(Manifest(**{**text, **more})).tau_b)
    curve["quantiles"] = {"0.5": [1.0]}
    assert Promise.of(Manifest(**text, calibration={"m": curve})).curve is None
