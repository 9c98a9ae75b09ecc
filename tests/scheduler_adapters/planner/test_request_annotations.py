"""Contents of `vllm_xargs` from clients, and their effect."""

from math import inf

import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.planner.request_annotations import (
    LIMITS,
    QUANTILES,
    REQUEST_KEY,
    SCORE,
    TBT_S,
    USER_CLASS,
    AnnotationCounts,
    annotations_of,
    read_annotations,
    request_key,
    score_annotations,
)
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import make_requests

HINTS = [SCORE, USER_CLASS, TBT_S, QUANTILES, REQUEST_KEY]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("nai1. ") | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)


@given(carried=st.dictionaries(st.sampled_from([*HINTS, "other"]), anything))
def test_no_hint_raises_and_each_request_counts_once(carried):
    counts = AnnotationCounts()
    hints = counts.read(carried)
    assert counts == AnnotationCounts(invalid=counts.invalid)
    assert float("-inf") < hints.get("score", 0.0) < float("inf")
    assert hints.get("tbt_s", 1.0) > 0
    assert all(0 < fraction < 1 and tokens >= 0 for fraction, tokens in hints.get("quantiles", ()))
    RequestView(request_id="", number=0, arrival_s=0.0, prompt_tokens=1, **hints)


@pytest.mark.parametrize("score", [0, 0.0, -3, 217.5, 10**300])
def test_any_finite_number_is_a_score(score):
    counts = AnnotationCounts()
    assert counts.read({SCORE: score}) == {"score": float(score)}
    assert counts.invalid == 0


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 10**400, "217", [217.5], True])
def test_an_unusable_score_counts_as_invalid(score):
    counts = AnnotationCounts()
    assert counts.read({SCORE: score}) == {}
    assert counts.invalid == 1


def test_quantiles_read_as_they_were_written():
    carried = score_annotations(3.0, {0.9: 640.0, 0.5: 210.0}) | {USER_CLASS: "a", TBT_S: 0.1}
    assert carried[QUANTILES] == [0.5, 210.0, 0.9, 640.0]
    quantiles = ((0.5, 210.0), (0.9, 640.0))
    read = {"score": 3.0, "user_class": "a", "tbt_s": 0.1, "quantiles": quantiles}
    counts = AnnotationCounts()
    assert counts.read(carried) == read
    assert counts.read(None) == counts.read({}) == {}
    assert counts == AnnotationCounts()
    assert score_annotations(3.0, {}) == {SCORE: 3.0}


@pytest.mark.parametrize(
    "quantiles",
    [
        [],
        [0.5],
        [0.5, 210, 0.9],
        [0.9, 640, 0.5, 210],
        [0.5, 640, 0.9, 210],
        [0.5, 1, 0.5, 1],
        [0, 10],
        [1, 10],
        [0.5, -1],
        [number for n in range(1, 102) for number in (n / 102, n)],
        [0.5, float("nan")],
        [0.5, "210"],
        "0.5:210",
        0.5,
    ],
)
def test_unusable_quantiles_are_invalid_beside_a_good_score(quantiles):
    counts = AnnotationCounts()
    assert counts.read({SCORE: 1.0, QUANTILES: quantiles}) == {"score": 1.0}
    assert counts.invalid == 1


def test_a_class_of_over_a_hundred_characters_is_invalid():
    counts = AnnotationCounts()
    assert counts.read({USER_CLASS: "c" * 100}) == {"user_class": "c" * 100}
    assert counts.invalid == 0
    assert counts.read({USER_CLASS: "c" * 101}) == {}
    assert counts.invalid == 1


@given(carried=st.none() | st.dictionaries(st.just(REQUEST_KEY), anything))
def test_no_ticket_that_a_client_makes_up_raises(carried):
    assert request_key(carried) is None


@pytest.mark.parametrize("ticket", ["0123456789abcdef" * 2, "f" * 32])
def test_a_ticket_is_32_hex_digits(ticket):
    assert request_key({REQUEST_KEY: ticket}) == ticket
    for wrong in (ticket[1:], ticket + "0", ticket[1:] + "G", ticket[1:] + "\n", ticket.upper()):
        assert wrong == ticket or request_key({REQUEST_KEY: wrong}) is None


def test_a_request_carries_the_ticket_of_a_later_score():
    requests = make_requests(
        prompt_tokens=[1] * 4,
        output_tokens=[1] * 4,
        scores=[3.0, 4.0, float("nan"), 5.0],
        score_s=[0.0, 0.5, 0.5, float("inf")],
    )
    kinds = [
        sorted({SCORE, REQUEST_KEY} & annotations_of(requests, row).keys()) for row in range(4)
    ]
    assert kinds == [[SCORE], [REQUEST_KEY], [], [REQUEST_KEY]]
    assert request_key(annotations_of(requests, 1)) is not None


@pytest.mark.parametrize(
    ("value", "limits"),
    [((4, inf), (4, inf)), ([0, 7], (0, 7)), ([7, 4], None), ([-1, 4], None), ([4], None)]
    + [(value, None) for value in ("ab", [None, 4], ["1", "2"], [float("nan"), 4], 5, {})],
)
def test_limits_are_the_least_and_the_most_tokens(value, limits):
    read, unusable = read_annotations({LIMITS: value})
    assert read == ({} if limits is None else {"limits": limits})
    assert unusable == ([LIMITS] if limits is None else [])
