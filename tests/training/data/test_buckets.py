"""Buckets: every prompt once, shortest first, padded to the longest of its bucket."""

import numpy as np
from hypothesis import given, strategies as st

from training.data.buckets import _CALL_TOKENS, bucket, micro_batches, pad

IDS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=30)


@given(IDS, st.integers(1, 7))
def test_every_prompt_is_in_one_bucket_and_buckets_are_ordered(ids, size):
    buckets = bucket(ids, size)
    order = np.concatenate(buckets)
    assert sorted(order.tolist()) == list(range(len(ids)))
    assert all(len(chunk) == size for chunk in buckets[:-1])
    lengths = [len(ids[n]) for n in order]
    assert lengths == sorted(lengths)


@given(IDS, st.integers(1, 7))
def test_micro_batches_hold_the_same_order_and_no_cut_is_cheaper(ids, size):
    def cost(chunks):
        return sum(len(c) * max(len(ids[n]) for n in c) + _CALL_TOKENS for c in chunks)

    found = micro_batches(ids, size)
    order = np.concatenate(found)
    assert order.tolist() == np.concatenate(bucket(ids, len(ids))).tolist()
    assert max(map(len, found)) <= size
    for first in range(1, size + 1):
        rest = range(first, len(ids), size)
        assert cost(found) <= cost(np.split(order, [n for n in rest if n < len(ids)]))


@given(IDS)
def test_padding_is_masked_and_the_tokens_stay(ids):
    padded, mask = pad(ids, 0)
    assert padded.shape == mask.shape == (len(ids), max(2, *map(len, ids), 0))
    assert [row[kept == 1].tolist() for row, kept in zip(padded, mask, strict=True)] == ids
    assert (padded[mask == 0] == 0).all()
