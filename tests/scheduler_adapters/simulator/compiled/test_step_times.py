"""Compiled step times against the latency models. Slow: numba compiles first."""

import numpy as np
import pytest

from scheduler_adapters.simulator.compiled.step_times import step_s
from tests.scheduler_adapters.simulator.compiled.test_loop import LATENCY, ROOFLINE, TABLES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("latency", [LATENCY, ROOFLINE, TABLES])
def test_a_step_takes_the_time_of_its_model(latency):
    random = np.random.default_rng(0)
    for _ in range(200):
        count, num_chunks = random.integers(0, 120), random.integers(0, 4)
        context = count * random.integers(1, 90)
        chunks = random.integers(1, 100, (4, 3))
        prefills = [(int(before), int(tokens)) for before, tokens, _ in chunks[:num_chunks]]
        if count + num_chunks:
            seconds = step_s(*latency.compiled(), count, context, chunks, num_chunks)
            assert seconds == latency.step_s(int(count), int(context), prefills)


def test_a_step_behind_the_last_row_of_a_table_has_no_time():
    chunks = np.array([[0, 10_000, 0]])
    assert step_s(*TABLES.compiled(), 1, 5, chunks, 1) == -1
