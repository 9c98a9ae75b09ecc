"""Requests: which columns are refused, and which are repaired."""

import logging

import numpy as np
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.workload.requests import make_requests


def test_unsorted_arrivals_are_sorted_and_said(caplog):
    with caplog.at_level(logging.WARNING):
        requests = make_requests(
            prompt_tokens=[1, 2, 3], output_tokens=[1, 2, 3], arrival_s=[2.0, 0.0, 1.0]
        )
    assert requests.prompt_tokens.tolist() == [2, 3, 1]
    assert requests.request_id.tolist() == ["1", "2", "0"]
    assert "sorted" in caplog.text


def test_scores_are_one_per_request_or_one_for_all():
    requests = make_requests(prompt_tokens=[1, 1], output_tokens=[3, 5])
    assert requests.with_scores(requests.output_tokens).score.tolist() == [3.0, 5.0]
    assert requests.with_scores(0.0).score.tolist() == [0.0, 0.0]
    with pytest.raises(DataError, match="score has shape"):
        requests.with_scores([1.0])


def test_a_score_may_come_later_and_never_before_its_request():
    requests = make_requests(
        prompt_tokens=[1] * 5,
        output_tokens=[1] * 5,
        arrival_s=[2.0, 1.0, 1.0, 1.0, 1.0],
        scores=5.0,
        score_s=[3.5, 0.0, 1.25, np.nan, np.inf],
    )
    assert requests.score_delay_s.tolist() == [0.0, 0.25, np.inf, np.inf, 1.5]
    assert make_requests(prompt_tokens=[1], output_tokens=[1]).score_delay_s.tolist() == [0.0]
    with pytest.raises(DataError, match="score_s is -1"):
        make_requests(prompt_tokens=[1], output_tokens=[1], score_s=[-1.0])


def test_limits_that_an_output_does_not_keep_are_left_out_and_counted(caplog):
    requests = make_requests(
        prompt_tokens=[1] * 3,
        output_tokens=[4, 5, 6],
        min_tokens=[4, 9, np.nan],
        max_tokens=[4, np.inf, 5],
    )
    assert requests.min_tokens.tolist() == [4, 0, 0]
    assert requests.max_tokens.tolist() == [4, np.inf, np.inf]
    assert "limits of 2 requests are left out" in caplog.text
    assert requests.has_limits
    assert not requests.take(np.array([1, 2])).has_limits
    for name in ("min_tokens", "max_tokens"):
        with pytest.raises(DataError, match=f"{name} is -1"):
            make_requests(prompt_tokens=[1], output_tokens=[1], **{name: [-1.0]})
