"""Charts of means: the promised run length holds, and blocks are steps."""

import numpy as np

from lengthwise.live.drift import DriftCharts

RUN_LENGTH = 400


def first_alarm(means, draw):
    """Return the steps up to the first alarm, in blocks of 20."""
    charts = DriftCharts(means, RUN_LENGTH)
    return next(n for n in range(20, 10**6, 20) if charts.add(draw((20, len(means)))))


def test_the_mean_run_without_a_fall_is_at_least_as_promised():
    random = np.random.default_rng(0)
    means = [0.6, 0.9, 0.2]
    runs = [first_alarm(means, lambda size: random.random(size) < means) for _ in range(100)]
    assert np.mean(runs) - 2 * np.std(runs) / 10 > RUN_LENGTH


def test_falls_raise_an_alarm_soon_and_missing_values_do_not():
    random = np.random.default_rng(0)
    fallen = [first_alarm([0.9], lambda size: random.random(size) < 0.5) for _ in range(20)]
    assert np.median(fallen) <= 60
    assert not DriftCharts([0.9], RUN_LENGTH).add(np.full((RUN_LENGTH // 2, 1), np.nan))
    assert not DriftCharts([0.9], RUN_LENGTH).add(np.empty((0, 1)))


def test_blocks_count_like_single_steps():
    values = np.random.default_rng(0).choice([-1.0, 1.0], (40, 2))
    whole, single = DriftCharts([0.5, 0.0], 1e9), DriftCharts([0.5, 0.0], 1e9)
    whole.add(values)
    for value in values:
        single.add(value[None])
    np.testing.assert_allclose(whole._evidence, single._evidence)
