"""Replays of a log: what they keep, and whether their intervals hold the simulator's truth."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from scheduler_adapters.commands.advise.replay import (
    Replay,
    Spread,
    carried_load,
    fewest_instances,
    figures_of,
    gains,
    lent_scores,
    policies_for,
    replays,
    spread,
    spread_of,
    tau_b_spread,
)
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.score_sources import achieved_tau_b, synthetic_scores
from scheduler_adapters.workload.traces import read_trace

INSTANCE = Instance.preset("llama-3-8b@a100-80g", max_num_seqs=4)
KNOWN = np.arange(120) % 5 < 2


def requests_of(count: int = 120, rate_per_s: float = 1.0) -> Requests:
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(4.5, 1.0, count), 1, 2000).astype(int)
    return make_requests(
        prompt_tokens=random.integers(10, 400, count),
        output_tokens=lengths,
        arrival_s=arrivals_s(count, rate_per_s=rate_per_s, seed=0),
        scores=synthetic_scores(lengths, tau_b=0.6),
        user_class=np.where(np.arange(count) % 3 == 0, "batch", "chat"),
    )


def a_replay(**changes: Any) -> Replay:
    requests = requests_of()
    requests = requests.with_scores(np.where(KNOWN, requests.score, np.nan))
    settings: dict[str, Any] = {"requests": requests, "instances": 1, "seed": 0}
    return Replay(instance=INSTANCE, **settings | changes)


def test_a_draw_keeps_the_log_and_its_own_scores() -> None:
    replay = a_replay()
    one, again, other = replay.drawn(1), replay.drawn(1), replay.drawn(2)
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "user_class"):
        assert_array_equal(getattr(one, name), getattr(replay.requests, name))
    assert_array_equal(one.score[KNOWN], replay.requests.score[KNOWN])
    assert np.isin(one.score, replay.requests.score[KNOWN]).all()
    assert_array_equal(one.score, again.score)
    assert (one.score != other.score).any()


def test_lent_scores_are_of_the_quality_of_the_known_ones() -> None:
    lengths = np.random.default_rng(1).integers(1, 1000, 4000)
    scores = synthetic_scores(lengths, tau_b=0.5)
    scores[1000:] = np.nan
    requests = make_requests(prompt_tokens=np.ones(4000, int), output_tokens=lengths, scores=scores)
    lent = lent_scores(requests, np.random.default_rng(0))
    known, others = (
        achieved_tau_b(lent[rows], lengths[rows]) for rows in np.split(np.arange(4000), [1000])
    )
    assert others == pytest.approx(known, abs=0.05)
    # Among answers of one length, any request may lend its score.
    equal = replace(requests, output_tokens=np.full(4000, 7))
    assert len(set(lent_scores(equal, np.random.default_rng(0))[1000:])) > 30


def test_only_scores_and_drawn_arrivals_differ_between_draws() -> None:
    replay = a_replay()
    assert [replay.num_draws(name, 20) for name in ("fcfs", "pars", "oracle")] == [1, 20, 1]
    assert replace(replay, rate_per_s=2.0).num_draws("fcfs", 20) == 20
    found = replays(replay, ["fcfs", "pars"], 10, (1.0,))
    fcfs = spread_of(found, "fcfs", "e2e_s.mean")
    assert fcfs.low == fcfs.value == fcfs.high
    pars = spread_of(found, "pars", "e2e_s.mean")
    assert pars.low < pars.value < pars.high
    assert f"{fcfs}" == f"{fcfs.value:.3g}"
    assert f"{pars}" == f"{pars.value:.3g} [{pars.low:.3g}, {pars.high:.3g}]"


def test_drawn_arrivals_and_assumed_scores_are_new_in_each_draw() -> None:
    replay = a_replay(assumed_tau_b=0.4, rate_per_s=3.0)
    one, other = replay.drawn(0), replay.drawn(1)
    assert (one.arrival_s != other.arrival_s).all()
    assert achieved_tau_b(one.score, one.output_tokens) == pytest.approx(0.4, abs=0.05)
    assert (one.score != other.score).any()


def test_pascal_is_replayed_where_reasoning_tokens_are_known() -> None:
    requests = requests_of()
    assert "pascal" not in policies_for(requests)
    assert "pascal" in policies_for(replace(requests, reasoning_tokens=requests.output_tokens // 2))


def test_true_lengths_shorten_a_queue_and_every_figure_is_there() -> None:
    replay = a_replay(requests=requests_of(rate_per_s=6.0))
    found = replays(replay, ["fcfs", "oracle"], 10)
    assert gains(found)["oracle"].value > 0.05
    assert gains(found)["fcfs"] == Spread(0.0, 0.0, 0.0)
    (figures,) = found["oracle", 1.3]
    assert 0 < figures["later_fraction"] < 1
    assert figures["delay_s.p99"] > 0
    assert figures["longest_wait_s"] > figures["queueing_s.p99"]
    (before,) = found["fcfs", 1.3]
    assert before["later_fraction"] == before["delay_s.p99"] == 0


def test_a_further_draws_interval_is_wider_than_that_of_the_mean() -> None:
    value, low, high = spread([1.0, 2.0, 3.0])
    assert value == 2.0
    assert high - value == value - low == pytest.approx(4.3027 * (4 / 3) ** 0.5, abs=1e-3)


def test_the_order_of_scores_has_an_interval() -> None:
    value, low, high = tau_b_spread(a_replay(), 20)
    assert low < value < high
    assert value == pytest.approx(0.6, abs=0.15)


def test_the_fewest_instances_keep_up_and_one_less_does_not() -> None:
    replay = a_replay(requests=requests_of(300, rate_per_s=20.0))
    count = fewest_instances(replay)
    assert count > 1
    end_s = [np.nanmax(replay.run("fcfs", instances=n).finished_s) for n in (count - 1, count)]
    assert end_s[0] > end_s[1]


def test_true_lengths_carry_more_load_within_a_mean_target() -> None:
    replay = a_replay(requests=requests_of(rate_per_s=6.0))
    slo = {"e2e_s.mean": figures_of(replay.run("fcfs"))["e2e_s.mean"]}
    found = carried_load(replay, ("fcfs", "pars", "oracle"), slo)
    assert found["oracle"][0].value > found["fcfs"][0].value >= 0.97
    assert found["fcfs"][1] == 1
    assert carried_load(replay, ["fcfs"], {"e2e_s.mean": 1e-3})["fcfs"] == (Spread(0, 0, 0), None)


TRACES = (
    "azure-llm-2023/AzureLLMInferenceTrace_conv_first_half.csv",
    "azure-llm-2023/AzureLLMInferenceTrace_code.csv",
    "mooncake-fast25/conversation_trace_first_half.parquet",
    "mooncake-fast25/synthetic_trace.parquet",
)
RUNS = int(os.environ.get("LENGTHWISE_COVERAGE_RUNS", "10"))
"""The documented figures are of 40."""


@pytest.mark.data
@pytest.mark.parametrize("trace", TRACES)
def test_intervals_hold_what_all_scores_would_give(trace: str, data_folder: Path) -> None:
    """Each run has a ranker with other errors, and sees its scores of two requests in five.

    The truth is the mean E2E under PARS with its scores of all requests. Policies that read no
    scores have the truth itself: arrivals and lengths are the trace's own.
    """
    requests = read_trace(data_folder / trace, limit=400)
    instance = replace(INSTANCE, max_num_seqs=32)
    replay = Replay(requests=requests.with_scores(0.0), instance=instance, instances=1, seed=0)
    replay = replace(replay, instances=fewest_instances(replay))
    held = 0
    for number in range(RUNS):
        scored = requests.with_scores(
            synthetic_scores(requests.output_tokens, tau_b=0.5, seed=number)
        )
        truth_s = figures_of(replace(replay, requests=scored).run("pars"))["e2e_s.mean"]
        is_known = np.random.default_rng((3, number)).random(len(requests)) < 0.4
        seen = scored.with_scores(np.where(is_known, scored.score, np.nan))
        own = replace(replay, requests=seen, seed=1000 + 100 * number)
        _, low_s, high_s = spread_of(replays(own, ["pars"], 20, (1.0,)), "pars", "e2e_s.mean")
        held += low_s <= truth_s <= high_s
    print(f"{trace}: {replay.instances} instances, {held} of {RUNS} intervals hold the truth")
    assert held >= 0.9 * RUNS - (RUNS < 40)
