"""Figures of pairs of answers: true, undefined without ground, alarmed as stated."""

import math

import numpy as np
import pytest

from lengthwise.agreement import tau_b
from lengthwise.bundle import LengthCurve, Manifest
from lengthwise.live.rank_quality import WINDOW, Answer, DriftChart, Promise, RankQuality

CURVE = LengthCurve([-3, 0, 3], [1, 1, 1], {0.5: [10, 100, 1000], 0.9: [40, 400, 4000]})


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


def answers_of(*columns):
    return [Answer(*one) for one in np.column_stack(columns).tolist()]


def test_the_interval_holds_the_true_value():
    random = np.random.default_rng(0)
    true = tau_b(*drawn(random, 100_000))
    found = [figures_of(answers_of(*drawn(random, 300))).interval for _ in range(200)]
    assert 180 <= sum(low <= true <= high for low, high in found) < 200


def test_many_pairs_have_the_figures_of_all():
    random = np.random.default_rng(1)
    scores, lengths = drawn(random, 2 * WINDOW)
    prompts = lengths + 300 * random.normal(size=2 * WINDOW)
    found = figures_of(answers_of(scores, lengths, np.zeros(2 * WINDOW), prompts))
    assert found.num_answers == WINDOW
    assert found.tau_b == pytest.approx(tau_b(scores, lengths), abs=0.08)
    ahead = found.tau_b - tau_b(prompts, lengths)
    assert found.over_prompt[0] < ahead < found.over_prompt[1]
    assert found.coverage == pytest.approx((0.5, 0.9), abs=0.04)


def test_pairs_that_a_cut_leaves_open_do_not_count():
    earlier, wrong = [Answer(5, 10)] * 16, [Answer(1, 12)] * 8
    open_ones = [Answer(9, 5, True)] * 8  # they might have become longer
    assert math.isnan(figures_of([*earlier, *open_ones, *wrong]).tau_b)
    longer = [Answer(9, 10, True)] * 8  # they would go on
    assert figures_of([*earlier, *longer, *wrong]).tau_b == 0


def test_quantiles_that_a_cut_or_a_limit_hides_do_not_count():
    first = [Answer(n, n + 4) for n in range(32)]
    cuts = [Answer(0, 200, True), Answer(0, 5, True), Answer(0, 50, False, 1, 150)] * 10
    assert figures_of(cuts + first).coverage[0] < figures_of(first).coverage[0]


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


@pytest.mark.parametrize(
    ("shift", "kinds"), [("none", set()), ("shuffled", {"order", "lengths"}), ("x2", {"lengths"})]
)
def test_shifts_raise_an_alarm_of_their_kind(shift, kinds):
    random, quality = np.random.default_rng(0), RankQuality(Promise(0.5, CURVE, 2000))
    for start in range(0, 3000, 50):
        scores, lengths = drawn(random, 50)
        if start >= 2000 and shift == "shuffled":
            random.shuffle(scores)
        if start >= 2000 and shift == "x2":
            lengths *= 2
        quality.add(answers_of(scores, lengths))
    assert quality.alarms.keys() == kinds
    assert all(2000 < at <= 3000 and quality.is_recent(kind) for kind, at in quality.alarms.items())
    quality.add(answers_of(*drawn(random, 2 * WINDOW)))
    assert not any(quality.is_recent(kind) for kind in kinds)


def test_the_mean_run_up_to_a_false_alarm_is_as_stated():
    """With a mean that just holds, where alarms are as frequent as they may be."""
    random, runs, chart = np.random.default_rng(0), [0], DriftChart(0.4, 200)
    for agrees in (random.random(100_000) < 0.7).tolist():
        runs[-1] += 1
        if chart.add(1 if agrees else -1):
            runs.append(0)
    assert np.mean(runs[:-1]) - 2 * np.std(runs[:-1]) / len(runs) ** 0.5 > 200


def test_a_manifest_promises_what_its_label_allows():
    curve = {"scores": [0.0], "quantiles": {"0.5": [1.0], "0.9": [2.0]}, "rows": 300}
    text = {"name": "n", "label": "output_tokens", "label_tokenizer": "t", "max_prompt_tokens": 9}
    full = Manifest(**text, metrics={"tau_b_ci": [0.4, 0.6]}, calibration={"m": curve})
    assert Promise.of(full)[::2] == (0.4, 300)
    assert Promise.of(Manifest(**text, metrics={"tau_b": 0.5})) == (0.5, None, 0)
    for more in ({"label": "reasoning_tokens", "metrics": {"tau_b": 0.5}}, {}):
        assert math.isnan(Promise.of(Manifest(**text | more)).tau_b)
