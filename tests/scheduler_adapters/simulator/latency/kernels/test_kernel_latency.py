"""Steps as sums of kernels."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_adapters.simulator.latency.kernels.grid import Grid2, Grid3
from scheduler_adapters.simulator.latency.kernels.kernel_latency import KernelLatency, padded
from scoring_service.errors import SchedulingError


def flat_grid(seconds: float) -> Grid2:
    return Grid2([1, 2], [0, 1], [[seconds, seconds], [seconds, seconds]])


def test_steps_are_padded_to_the_sizes_of_captured_graphs():
    times = padded(np.arange(600.0))
    assert [times[tokens] for tokens in (1, 2, 3, 5, 8, 9, 505, 512, 513)] == [
        *(1, 2, 4, 8, 8, 16, 512, 512, 513)
    ]


def test_a_kernel_step_is_the_sum_of_its_parts():
    latency = KernelLatency(
        tokens_s=np.full(100, 1.0).tolist(),
        sequences_s=np.full(10, 10.0).tolist(),
        prefill_s=flat_grid(100.0),
        decode_s=flat_grid(1000.0),
        mixed_s=Grid3([1, 2], [flat_grid(2000.0)] * 2),
    )
    assert latency.step_s(2, 20, []) == 1011
    assert latency.step_s(0, 0, [(0, 5), (3, 7)]) == 211
    assert latency.step_s(2, 20, [(0, 5)]) == 2111


@pytest.mark.parametrize("step", [(100, 100, []), (0, 0, [(0, 100)]), (10, 10, [])])
def test_a_step_beyond_the_kernel_tables_is_refused(step):
    latency = KernelLatency(
        tokens_s=[1.0] * 100,
        sequences_s=[1.0] * 10,
        prefill_s=flat_grid(1.0),
        decode_s=flat_grid(1.0),
    )
    with pytest.raises(SchedulingError, match="kernel tables end"):
        latency.step_s(*step)
