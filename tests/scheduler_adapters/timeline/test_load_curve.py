"""Load over time: means are weighted by time."""

from __future__ import annotations

import numpy as np

from scheduler_adapters.timeline.load_curve import LoadCurve


def test_the_mean_load_is_weighted_by_time_and_idle_time_counts_as_none():
    load = LoadCurve(
        end_s=np.array([1.0, 2.0, 6.0]),
        duration_s=np.array([1.0, 1.0, 2.0]),
        used_blocks=np.array([4.0, 8.0, 2.0]),
        num_waiting=np.zeros(3),
        num_resident=np.zeros(3),
    )
    # 4 for one second, 8 for one, nobody for two, 2 for two.
    assert load.mean(load.used_blocks, np.array([0.0, 2.0, 4.0, 6.0, 8.0])).tolist() == [6, 0, 2, 0]
    assert load.mean(load.used_blocks, np.array([0.0, 8.0])).tolist() == [2]


def test_without_steps_the_mean_load_is_none_at_all():
    none = np.zeros(0)
    load = LoadCurve(
        end_s=none, duration_s=none, used_blocks=none, num_waiting=none, num_resident=none
    )
    assert load.mean(none, np.array([0.0, 1.0, 2.0])).tolist() == [0, 0]
