"""Requests: which columns are refused, and which are repaired."""

import logging
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import DataError
from scheduler_adapters.planner.request_annotations import annotations_of, read_annotations
from scheduler_adapters.simulator.engine.arrivals import request_state, request_views
from scheduler_adapters.timeline import timeline as timelines
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import COLUMNS, make_requests

TEXTS = st.text("aé,1.N", max_size=4)
QUANTILES = st.sampled_from([(), ((0.5, 210.0),), ((0.25, 10.0), (0.75, 10.0), (0.9, 99.5))])


@st.composite
def any_requests(draw):
    """Return requests with any value of every field, of which some are absent."""
    count = draw(st.integers(1, 5))

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    output = np.array(column(st.integers(1, 30)))
    prompt = np.array(column(st.integers(1, 30)))
    fields = {
        "request_id": column(TEXTS),
        "arrival_s": sorted(column(st.floats(0, 1e6))),
        "reasoning_tokens": output // 2,
        "score": column(st.floats(allow_infinity=False)),
        "user_class": column(TEXTS),
        "tbt_s": column(st.floats(1e-3, 9) | st.just(np.nan)),
        "score_delay_s": column(st.floats(0, 9) | st.just(np.inf)),
        "min_tokens": column(st.integers(0, 40)),
        "max_tokens": column(st.integers(1, 40) | st.just(np.inf)),
        "client": column(TEXTS),
        "cached_tokens": prompt // 3,
        "quantiles": column(QUANTILES),
    }
    assert fields.keys() | {"prompt_tokens", "output_tokens"} == COLUMNS.keys()
    chosen = {name: fields[name] for name in draw(st.sets(st.sampled_from(sorted(fields))))}
    return make_requests(prompt_tokens=prompt, output_tokens=output, **chosen)


@settings(max_examples=40)
@given(requests=any_requests(), suffix=st.sampled_from([".parquet", ".jsonl"]))
def test_every_field_survives_a_file(tmp_path_factory, requests, suffix):
    path = tmp_path_factory.mktemp("timelines") / f"timeline{suffix}"
    count = len(requests)
    token_s = [1e6 + np.arange(tokens) / 3 for tokens in requests.output_tokens.tolist()]
    token_s[-1] = []
    events = {"instance": np.arange(count), "preemptions": 2, "migrations": 1}
    events |= {"rejected": np.arange(count) == count - 1, "answer_scheduled_s": 2e6 / 3}
    timeline = timelines.timeline_from_token_times(requests, token_s, scheduled_s=1e5 / 3, **events)
    timelines.write_timeline(timeline, path)
    again = timelines.read_timeline(path)
    for before, after in ((requests, again.requests), (timeline, again)):
        for name in (field.name for field in fields(before) if field.name != "requests"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name), name)
    np.testing.assert_equal(summarize(again).to_dict(), summarize(timeline).to_dict())


@given(requests=any_requests())
def test_views_and_annotations_hold_the_fields(requests):
    for row, view in enumerate(request_views(requests)):
        one = request_state(requests, row)
        assert one.view == view
        assert (one.output_tokens, one.reasoning_tokens) == (
            requests.output_tokens[row],
            requests.reasoning_tokens[row],
        )
        assert view.limits == (requests.min_tokens[row], requests.max_tokens[row])
        carried, unusable = read_annotations(annotations_of(requests, row))
        assert not unusable
        if requests.score_delay_s[row]:
            carried["score"] = view.score
        bare = {"cached_tokens": view.cached_tokens, "prompt_tokens": view.prompt_tokens}
        assert view == RequestView(view.request_id, row, view.arrival_s, **bare, **carried)


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


def test_limits_an_output_does_not_keep_are_left_out_and_counted(caplog):
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
