"""Pairs: the longer first, never equal, always far enough apart, the same for the same seed."""

import numpy as np
from hypothesis import given, strategies as st

from training.data.pairs import relative_gap, sample_pairs

lengths_st = st.lists(st.integers(1, 500), min_size=2, max_size=60).map(
    lambda values: np.array(values, np.float64)
)


@given(lengths_st, st.floats(0, 0.9), st.integers(0, 99))
def test_every_pair_is_in_order_and_beyond_delta(lengths, delta, seed):
    longer, shorter = lengths[sample_pairs(lengths, pairs_per_prompt=2, delta=delta, seed=seed)].T
    assert (longer > shorter).all()
    assert (relative_gap(longer, shorter) >= delta).all()


@given(lengths_st, st.integers(0, 99))
def test_reversing_the_lengths_reverses_every_pair(lengths: np.ndarray, seed: int) -> None:
    # 1/x keeps every relative gap and turns the order round.
    forth = sample_pairs(lengths, pairs_per_prompt=2, delta=0.0, seed=seed)
    back = sample_pairs(1 / lengths, pairs_per_prompt=2, delta=0.0, seed=seed)
    np.testing.assert_array_equal(forth, back[:, ::-1])


def test_the_seed_decides_the_pairs() -> None:
    lengths = np.arange(1.0, 51.0)
    first, again, other = (
        sample_pairs(lengths, pairs_per_prompt=1, delta=0.2, seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert len(first) == 50
    assert not np.array_equal(first, other)


def test_a_gap_of_exactly_delta_is_kept() -> None:
    lengths = np.array([100.0, 80.0])
    pairs = sample_pairs(lengths, pairs_per_prompt=3, delta=0.2, seed=0)
    assert pairs.tolist() == [[0, 1]] * 6
    assert len(sample_pairs(lengths, pairs_per_prompt=3, delta=0.21, seed=0)) == 0
    assert sample_pairs(np.full(9, 7.0), pairs_per_prompt=3, delta=0, seed=0).shape == (0, 2)
    assert relative_gap(lengths, lengths[::-1]).tolist() == [0.2, 0.2]


def test_too_few_pairs_are_drawn_again_until_there_are_enough() -> None:
    lengths = np.array([*[7.0] * 20, 50.0])  # One draw of eleven qualifies.
    assert len(sample_pairs(lengths, pairs_per_prompt=1, delta=0.2, seed=0)) == 21
