"""Look-ups in Vidur's tables: rounding as Vidur rounds, and refusals beyond the last entry."""

import numpy as np
import pytest

from lengthwise.errors import DataError, SchedulingError
from scheduler_adapters.simulator.latency.models import TABLES
from scheduler_adapters.simulator.latency.time_tables import TableLatency

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "linear_ms": RANDOM.uniform(0.1, 1.0, 41),
    "kv_save_ms": RANDOM.uniform(0.1, 1.0, 41),
    "decode_attention_ms": RANDOM.uniform(0.1, 1.0, (5, 4)),
    "prefill_attention_ms": RANDOM.uniform(0.1, 1.0, (4, 41)),
}
LINEAR, SAVE, DECODE, PREFILL = ARRAYS.values()


@pytest.fixture
def latency(tmp_path):
    np.savez(tmp_path / "tables.npz", **ARRAYS)
    return TableLatency.load(tmp_path / "tables.npz", layers=10)


def test_tokens_are_padded_to_eight_and_contexts_rounded_up(latency):
    dense_ms = LINEAR[8] + SAVE[1]
    assert latency.step_s(1, 65, []) == pytest.approx((dense_ms + DECODE[1, 2]) * 10 * 1e-3)
    dense_ms = LINEAR[16] + SAVE[9]
    assert latency.step_s(0, 0, [(64, 9)]) == pytest.approx((dense_ms + PREFILL[1, 9]) * 1e-2)


def test_attention_over_several_requests_costs_a_tenth_more(latency):
    dense_ms = LINEAR[8] + SAVE[3]
    assert latency.step_s(3, 90, []) == pytest.approx((dense_ms + 1.1 * DECODE[3, 1]) * 1e-2)
    dense_ms = LINEAR[8] + SAVE[7]
    two = latency.step_s(0, 0, [(0, 3), (1, 4)])  # the root of 9 + 16 is 5
    assert two == pytest.approx((dense_ms + 1.1 * PREFILL[1, 5]) * 1e-2)


@pytest.mark.parametrize("step", [(5, 5, []), (1, 300, []), (0, 0, [(0, 41)]), (0, 0, [(300, 1)])])
def test_a_step_beyond_the_tables_is_refused(latency, step):
    with pytest.raises(SchedulingError, match="the time tables end before a step"):
        latency.step_s(*step)


def test_the_compiled_form_holds_the_same_numbers(latency):
    kind, numbers, dense, decode, prefill = latency.compiled()
    assert (kind, numbers.tolist()) == (TABLES, [10.0])
    assert dense[9] == LINEAR[16] + SAVE[9]
    assert decode[3, 1] == pytest.approx(1.1 * DECODE[3, 1])
    np.testing.assert_array_equal(prefill, PREFILL)


def test_a_file_without_a_table_is_refused(tmp_path):
    np.savez(tmp_path / "half.npz", linear_ms=LINEAR)
    with pytest.raises(DataError, match="no set of time tables"):
        TableLatency.load(tmp_path / "half.npz")
