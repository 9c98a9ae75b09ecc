"""UniBoost: decisions by the written-out rule, bounded boosts, and both ends of gamma."""

from math import exp, log

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.policies.rivals.uniboost import LearnedUniBoost, UniBoost
from scheduler_adapters.policy import load_policy
from scheduler_adapters.views import LoadView, RequestView
from tests.scheduler_adapters.policies.rivals.written_out import RUNS, assert_written_out

SEEDS = [range(8), pytest.param(range(8, RUNS), marks=pytest.mark.slow)]


def boosted_s(view: RequestView, tokens: float, gamma: float) -> float:
    work_s = tokens * 64e-6
    return view.arrival_s - log(1 / (1 - exp(-gamma * work_s))) / gamma


@pytest.mark.parametrize("gamma", [1.0, 10.0])
@pytest.mark.parametrize("seeds", SEEDS)
def test_the_order_is_that_of_arrival_less_boost(seeds, gamma):
    assert_written_out(
        lambda: UniBoost(gamma_per_s=gamma),
        lambda view, _: boosted_s(view, view.prompt_tokens - view.cached_tokens, gamma),
        seeds,
    )


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_learned_variant_adds_the_predicted_answer(seeds):
    def rule(view: RequestView, _: float) -> float:
        median = [int(tokens) for share, tokens in view.quantiles if share == 0.5]
        tokens = view.prompt_tokens - view.cached_tokens + 4 * (median or [30])[0]
        return boosted_s(view, tokens, 1.0)

    assert_written_out(lambda: LearnedUniBoost(gamma_per_s=1.0, unknown_tokens=30), rule, seeds)


def test_a_boost_has_a_limit_and_gamma_sets_shortest_or_first():
    short, long = RequestView("short", 1, 5.0, 10), RequestView("long", 0, 0.0, 10_000)

    def key(policy: UniBoost, view: RequestView) -> float:
        return policy.rank(view, LoadView()).key[0]

    assert key(UniBoost(gamma_per_s=0.1), short) < key(UniBoost(gamma_per_s=0.1), long)
    assert key(UniBoost(), short) > key(UniBoost(), long)
    assert -1.0 < key(UniBoost(), RequestView("hit", 2, 0.0, 10, cached_tokens=10)) < 0.0
    assert key(UniBoost(gamma_per_s=1e9), long) == 0.0
    for wrong in ({"gamma_per_s": 0}, {"us_per_token": -1.0}):
        with pytest.raises(ConfigError, match="use a number above 0"):
            load_policy("uniboost", **wrong)
