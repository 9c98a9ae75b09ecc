"""Steps as sums of kernels, and collectives between GPUs by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lengthwise.errors import SchedulingError
from scheduler_adapters.simulator.latency.kernels.grid import Grid2, Grid3
from scheduler_adapters.simulator.latency.kernels.kernel_latency import (
    KernelLatency,
    Link,
    all_reduce_s,
    gather_and_scatter_s,
    padded,
)

LINK = Link(latency_s=1.0, bytes_per_s=100.0)


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


def test_a_collective_costs_its_latency_and_its_bytes():
    assert LINK.seconds(np.array([0.0, 50.0])).tolist() == [1.0, 1.5]


@pytest.mark.parametrize(("num_gpus", "share"), [(2, 1.0), (4, 1.5)])
def test_a_ring_moves_each_byte_twice_less_ones_own(num_gpus, share):
    seconds = all_reduce_s(25, num_gpus, LINK)  # a token is 50 bytes
    assert seconds[:3].tolist() == pytest.approx([1.0, 1 + 0.5 * share, 1 + share])


def test_tokens_go_there_and_back():
    assert gather_and_scatter_s(25, 2, LINK)[2] == pytest.approx(2 * (1 + 100 * 0.5 / 100))
