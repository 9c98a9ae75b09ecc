"""The search for a load: bisection, and the scores that each policy is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_adapters.commands.search import SearchConfig, capacity_of, highest_load
from scheduler_adapters.progress import Progress
from scheduler_adapters.workload.requests import make_requests
from scoring_service.errors import ConfigError

REQUESTS = make_requests(prompt_tokens=[8] * 40, output_tokens=list(range(1, 41)))


@given(st.floats(0.06, 900))
def test_bisection_finds_the_edge_however_far_it_is(edge):
    found = highest_load(lambda rate: rate <= edge, low=0.05, high=1.0, tolerance=0.01, grows=True)
    assert edge * 0.985 <= found <= edge


def test_the_ends_of_the_range_are_answers_too():
    assert highest_load(lambda rate: False, low=1, high=2, tolerance=0.1) == 0.0
    assert highest_load(lambda rate: True, low=1, high=2, tolerance=0.1) == 2


@given(edge=st.integers(1, 500), most=st.integers(2, 500))
def test_a_search_over_whole_numbers_ends_at_the_last_good_one(edge, most):
    tried = []

    def meets(count):
        tried.append(count)
        return count <= edge

    found = highest_load(meets, low=1, high=2, tolerance=1e-9, grows=True, most=most, whole=True)
    assert found == min(edge, most)
    assert all(isinstance(count, int) and count <= most for count in tried)


def test_the_oracle_is_given_lengths_under_any_name():
    config = SearchConfig(
        policies=["best", "pars"], settings={"best": {"policy": "oracle"}}, scores="constant"
    )
    assert config.scored_for("best", REQUESTS).score.tolist() == list(range(1, 41))
    assert set(config.scored_for("pars", REQUESTS).score) == {0.0}


def test_a_caption_counts_the_seeds():
    assert SearchConfig(seeds=1).searched(7).endswith("seed 0.")
    assert SearchConfig(seeds=3, by="concurrency").searched(7).endswith("seed 0 and 2 more.")


def test_too_few_requests_for_clients_are_refused():
    config = SearchConfig(by="concurrency", scores="constant")
    with pytest.raises(ConfigError, match="num_requests is 7; use at least 8"):
        capacity_of("fcfs", config, REQUESTS.take(slice(7)), Progress(1))
