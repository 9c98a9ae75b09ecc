"""Collectives between GPUs by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_adapters.simulator.latency.kernels.interconnect import (
    Link,
    all_reduce_s,
    gather_and_scatter_s,
)

LINK = Link(latency_s=1.0, bytes_per_s=100.0)


def test_a_collective_costs_its_latency_and_its_bytes():
    assert LINK.seconds(np.array([0.0, 50.0])).tolist() == [1.0, 1.5]


@pytest.mark.parametrize(("num_gpus", "share"), [(2, 1.0), (4, 1.5)])
def test_a_ring_moves_each_byte_twice_less_ones_own(num_gpus, share):
    seconds = all_reduce_s(25, num_gpus, LINK)  # a token is 50 bytes
    assert seconds[:3].tolist() == pytest.approx([1.0, 1 + 0.5 * share, 1 + share])


def test_tokens_go_there_and_back():
    assert gather_and_scatter_s(25, 2, LINK)[2] == pytest.approx(2 * (1 + 100 * 0.5 / 100))
