"""Workloads as settings: traces or synthetic lengths, classes, arrivals and scores."""

import numpy as np
import pytest

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.workload.workload import WorkloadConfig


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"{row},{5 + row},{9 + row}" for row in range(40)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return path


def test_a_trace_keeps_its_times_unless_a_rate_is_given(trace):
    own = WorkloadConfig(trace=(str(trace),), num_requests=30).load()
    assert own.arrival_s.tolist() == list(range(30))
    rated = WorkloadConfig(trace=(str(trace),), rate_per_s=100.0).load()
    assert 0 < rated.arrival_s[-1] < 2
    assert rated.output_tokens.tolist() == list(range(9, 49))


def test_classes_have_shares_and_targets_and_repeat_by_seed():
    classes = {"paying": {"share": 0.25, "tbt_s": 0.1}, "free": {"share": 0.75}}
    config = WorkloadConfig(classes=classes, num_requests=4000)
    requests = config.load()
    is_paying = requests.user_class == "paying"
    assert is_paying.mean() == pytest.approx(0.25, abs=0.02)
    assert set(requests.tbt_s[is_paying]) == {0.1}
    assert np.isnan(requests.tbt_s[~is_paying]).all()
    assert (config.load().user_class == requests.user_class).all()


def test_scores_are_as_asked_or_of_the_trace_or_synthetic(trace):
    config = WorkloadConfig(trace=(str(trace),))
    requests = config.load()
    own = requests.with_scores(np.arange(40.0))
    assert (config.score_source(requests), config.score_source(own)) == ("synthetic", "trace")
    assert config.scored(own).score.tolist() == list(range(40))
    assert np.isfinite(config.scored(requests).score).all()
    constant = WorkloadConfig(trace=(str(trace),), scores="constant")
    assert set(constant.scored(own).score) == {0.0}
    assert constant.scored(own, by_oracle=True).score.tolist() == own.output_tokens.tolist()


def test_scores_of_a_trace_without_any_are_refused(trace):
    with pytest.raises(DataError, match="no scores in a column 'score'"):
        WorkloadConfig(trace=(str(trace),), scores="trace").load()


def test_lengths_by_name_reason_and_stand_beside_no_trace(trace):
    requests = WorkloadConfig(lengths="arena-hard", num_requests=30, rate_per_s=2.0).load()
    assert (requests.reasoning_tokens > 0).all()
    assert (requests.reasoning_tokens < requests.output_tokens).all()
    assert requests.arrival_s[-1] > 0
    with pytest.raises(ConfigError, match="use one of them"):
        WorkloadConfig(trace=(str(trace),), lengths="arena-hard")
    with pytest.raises(ConfigError, match="alpaca-eval"):
        WorkloadConfig(lengths="poems")
