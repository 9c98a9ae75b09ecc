"""Shortest prompt first: decisions by the written-out rule, and the limit of a wait."""

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.policies.rivals.shortest_prompt import ResidualPrompt, ShortestPrompt
from scheduler_adapters.policy import load_policy
from scheduler_adapters.views import LoadView, RequestView
from tests.scheduler_adapters.policies.rivals.written_out import RUNS, assert_written_out

SEEDS = [range(8), pytest.param(range(8, RUNS), marks=pytest.mark.slow)]
RATE = 32.0
"""Tokens per second; with times in units of 1/16384 s no sum is rounded."""


@pytest.mark.parametrize("seeds", SEEDS)
def test_a_waiting_request_grows_shorter_with_time(seeds):
    assert_written_out(
        lambda: ShortestPrompt(ageing_tokens_per_s=RATE),
        lambda view, now_s: view.prompt_tokens - RATE * (now_s - view.arrival_s),
        seeds,
    )


@pytest.mark.parametrize("seeds", SEEDS)
def test_only_tokens_outside_the_prefix_cache_count(seeds):
    assert_written_out(
        lambda: ResidualPrompt(ageing_tokens_per_s=RATE),
        lambda view, now_s: (
            view.prompt_tokens - view.cached_tokens - RATE * (now_s - view.arrival_s)
        ),
        seeds,
    )


def test_a_later_request_goes_first_only_while_ageing_allows_it():
    policy = load_policy("shortest-prompt")
    long = policy.rank(RequestView("long", 0, 0.0, 1000), LoadView())
    assert policy.rank(RequestView("soon", 1, 9.9, 1), LoadView()).key < long.key
    assert policy.rank(RequestView("late", 2, 10.1, 1), LoadView()).key > long.key
    with pytest.raises(ConfigError, match="ageing_tokens_per_s is -1"):
        load_policy("residual-prompt", ageing_tokens_per_s=-1)
