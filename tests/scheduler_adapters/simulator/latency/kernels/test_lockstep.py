"""Data-parallel ranks that step together."""

from __future__ import annotations

import numpy as np
import pytest

from lengthwise.errors import SchedulingError
from scheduler_adapters.simulator.latency.kernels.grid import Grid2
from scheduler_adapters.simulator.latency.kernels.kernel_latency import KernelLatency
from scheduler_adapters.simulator.latency.kernels.lockstep import LockstepLatency


def flat_grid(seconds: float) -> Grid2:
    return Grid2([1, 2], [0, 1], [[seconds, seconds], [seconds, seconds]])


def test_a_lockstep_group_waits_for_its_fullest_rank():
    rank = KernelLatency(
        tokens_s=np.arange(1000.0).tolist(),
        sequences_s=[0.0] * 100,
        prefill_s=flat_grid(0.0),
        decode_s=flat_grid(0.0),
    )
    group = LockstepLatency(rank=rank, num_ranks=2, experts_s=[0.5] * 1000)
    assert group.step_s(10, 100, []) == 5.5
    assert group.step_s(10, 100, [(0, 300), (0, 100), (0, 100)]) == 305.5
    assert group.step_s(0, 0, [(0, 300)]) == 300.5
    with pytest.raises(SchedulingError, match="expert tables end"):
        group.step_s(1000, 1000, [])
