"""The watch counts answers by arrival; useless scores put arrival in order until they are good."""

import logging

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from lengthwise.live.rank_quality import WINDOW, Promise
from scheduler_adapters.engines.quality.rank_watch import RankWatch
from scheduler_adapters.policies.fcfs import ArrivalFallback
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scoring_service.waiting import wait_until

PROMISE = Promise(0.9)


def served(watch: RankWatch, scores, lengths, first: int = 0) -> None:
    """Report requests that arrive in this order and end in the opposite one."""
    views = [
        RequestView("", first + n, 0.0, 5, score=score, generated_tokens=int(length))
        for n, (score, length) in enumerate(zip(scores, lengths, strict=True))
    ]
    for view in views:
        watch.queued(view, 0.0)
        watch.admitted(view, 1.0)
    for view in reversed(views):
        watch.finished(view, 2.0)


def watching(promise=PROMISE, fallback=None) -> RankWatch:
    return RankWatch(lambda: ("r1", promise), fallback, is_apart=False)


def test_answers_count_once_all_that_arrived_before_have_left():
    watch = watching()
    views = [RequestView("", n, 0.0, 5, score=n, generated_tokens=n) for n in range(40)]
    views[5].score, views[6].limits = None, (6, 6)
    for view in views:
        watch.queued(view, 0.0)
    for view in views[1:30]:
        watch.finished(view, 1.0)
    assert watch.figures.num_answers == 0
    watch.withdrawn(views[0], 2.0)
    assert watch.figures.num_answers == 28
    assert watch.figures.tau_b == pytest.approx(1)
    watch.finished(views[0], 3.0)  # a second end


def test_arrival_orders_while_scores_are_useless(caplog):
    random, fallback = np.random.default_rng(0), ArrivalFallback(load_policy("pars"))
    watch, lengths = watching(fallback=fallback), random.permutation(4 * WINDOW)
    served(watch, lengths[:500], lengths[:500])
    assert not fallback.is_wanted
    with caplog.at_level(logging.WARNING):
        served(watch, -lengths[500:1500], lengths[500:1500], 500)
    assert fallback.is_wanted
    assert watch.alarms == {"order": True, "lengths": False}
    assert [line.split(" (")[0] for line in caplog.messages] == [
        "ranker r1 breaks its promise about the order of lengths",
        "requests are ordered by arrival",
    ]
    served(watch, lengths[1500:], lengths[1500:], 1500)
    assert not fallback.is_wanted


@pytest.mark.parametrize("reason", ["chance", "prompt"])
def test_without_a_promise_the_figures_decide(reason):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 1000, 600)
    scores = (
        random.permutation(lengths)
        if reason == "chance"
        else lengths + 500 * random.normal(size=600)
    )
    watch = watching(Promise())
    for n, (score, length) in enumerate(zip(scores, lengths, strict=True)):
        size = 5 if reason == "chance" else length
        view = RequestView("", n, 0.0, size, score=score, generated_tokens=int(length))
        watch.queued(view, 0.0)
        watch.finished(view, 2.0)
    assert watch.reason == reason


def test_a_new_revision_starts_anew_and_a_thread_counts():
    named = ["r1"]
    watch = RankWatch(lambda: (named[0], Promise()), has_predicted=lambda number: number != 3)
    served(watch, range(64), range(64))
    wait_until(lambda: watch.figures.num_answers == 63)
    named[0] = "r2"
    served(watch, range(65), range(65), 64)
    wait_until(lambda: watch.revision == "r2")
    served(watch, range(64), range(64), 129)
    wait_until(lambda: watch.figures.num_answers == 64)
    watch.close()


def test_metrics_leave_out_what_is_undefined():
    watch, registry = watching(Promise()), CollectorRegistry()
    registry.register(watch)
    served(watch, range(10), range(10))
    labels = {"engine": "0", "revision": "r1"}
    assert registry.get_sample_value("lengthwise_rank_tau_b", labels | {"end": ""}) is None
    served(watch, range(30), range(30), 10)
    assert registry.get_sample_value("lengthwise_rank_tau_b", labels | {"end": ""}) > 0.5
    assert registry.get_sample_value("lengthwise_arrival_order", labels | {"reason": ""}) == 0


@pytest.mark.parametrize("kind", ["good", "inverted"])
def test_harm_of_wrong_scores_ends_with_the_alarm(kind):
    random = np.random.default_rng(0)
    lengths = np.ceil(random.lognormal(4, 1, 4000)).astype(int)
    requests = make_requests(
        prompt_tokens=np.full(4000, 20),
        output_tokens=lengths,
        scores=(1 if kind == "good" else -1) * np.log(lengths) + random.normal(size=4000) / 2,
        arrival_s=np.cumsum(random.exponential(1 / 55, 4000)),
    )
    instance = Instance.preset("llama-3-8b@a100-80g", max_num_seqs=64)
    fallback = ArrivalFallback(load_policy("pars"))
    protected = simulate(
        requests, fallback, instance, observers=[watching(Promise(0.65), fallback)]
    )
    e2e_s = simulate(requests, load_policy("fcfs"), instance).e2e_s()
    assert not np.isnan(protected.finished_s).any()
    assert fallback.is_active == (kind == "inverted")
    if kind == "good":
        assert np.mean(protected.e2e_s()) < 0.9 * np.mean(e2e_s)
    else:
        assert np.mean(protected.e2e_s()[2000:]) < 1.05 * np.mean(e2e_s[2000:])
