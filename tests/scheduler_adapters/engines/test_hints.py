"""What clients may write into `vllm_xargs`, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_adapters.engines.hints import SCORE, TBT_S, USER_CLASS, HintCounts, Hints

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("nai1. ") | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)


@given(carried=st.dictionaries(st.sampled_from([SCORE, USER_CLASS, TBT_S, "other"]), anything))
def test_nothing_a_client_sends_raises_and_each_request_is_counted_once(
    carried: dict[str, Any],
) -> None:
    counts = HintCounts()
    hints = counts.read(carried)
    assert counts.scored + counts.unscored == 1
    assert counts.scored == (hints.score is not None)
    assert hints.score is None or float("-inf") < hints.score < float("inf")
    assert hints.tbt_s is None or hints.tbt_s > 0


@pytest.mark.parametrize("score", [0, 0.0, -3, 217.5, 10**300])
def test_any_finite_number_is_a_score(score: float) -> None:
    counts = HintCounts()
    assert counts.read({SCORE: score}) == Hints(score=float(score))
    assert (counts.scored, counts.unscored, counts.invalid) == (1, 0, 0)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 10**400, "217", [217.5], True])
def test_an_unusable_score_counts_as_invalid_and_unscored(score: object) -> None:
    counts = HintCounts()
    assert counts.read({SCORE: score}) == Hints()
    assert (counts.scored, counts.unscored, counts.invalid) == (0, 1, 1)


def test_a_request_without_hints_is_unscored_and_not_invalid() -> None:
    counts = HintCounts()
    assert counts.read(None) == counts.read({}) == Hints()
    assert (counts.scored, counts.unscored, counts.invalid) == (0, 2, 0)


def test_class_and_target_are_read_beside_the_score() -> None:
    carried = {SCORE: 1, USER_CLASS: "paying", TBT_S: 0.1}
    assert HintCounts().read(carried) == Hints(score=1.0, user_class="paying", tbt_s=0.1)
