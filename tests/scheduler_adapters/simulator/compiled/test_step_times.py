"""Compiled step times against the latency models. Slow: numba compiles first."""

import numpy as np
import pytest

from scheduler_adapters.simulator.compiled.step_times import step_s
from tests.scheduler_adapters.simulator.compiled.test_loop import TABLES

pytestmark = pytest.mark.slow


def test_a_step_behind_the_last_row_of_a_table_has_no_time():
    assert step_s(*TABLES.compiled(), 1, 5, np.array([[0, 10_000, 0]]), 1) == -1
