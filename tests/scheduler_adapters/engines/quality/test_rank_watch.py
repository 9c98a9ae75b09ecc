"""The watch counts answers by arrival; useless scores put arrival in order until they are good."""

import logging
from math import inf, nan

import numpy as np
import pytest

from lengthwise.bundle import Manifest
from lengthwise.live.rank_quality import WINDOW
from scheduler_adapters.engines.quality.rank_watch import RankWatch
from scheduler_adapters.policies.fcfs import ArrivalFallback
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scoring_service.waiting import wait_until


def ranker(tau_b: float = nan, name: str = "r1") -> Manifest:
    metrics = {"tau_b": None if np.isnan(tau_b) else tau_b}
    more = {"label": "output_tokens", "label_tokenizer": "t", "max_prompt_tokens": 9}
    return Manifest(name=name, metrics=metrics, files={"model.onnx": name}, **more)


def served(watch: RankWatch, scores, lengths, first: int = 0, prompts=None) -> None:
    """Report requests that arrive in this order and end in the opposite one."""
    columns = np.column_stack([scores, lengths, np.full(len(lengths), 5)]).tolist()
    views = [
        RequestView("", first + n, 0.0, int(size), score=score, generated_tokens=int(length))
        for n, (score, length, size) in enumerate(columns)
    ]
    for view in views:
        watch.queued(view, 0.0)
    for view in reversed(views):
        watch.finished(view, 2.0)


def watching(tau_b=0.9, fallback=None) -> RankWatch:
    return RankWatch(lambda: ranker(tau_b), fallback, is_apart=False)


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
    assert ("arrival_order", "alarm", True) in watch.samples()
    assert ("rank_alarm", "order", True) in watch.samples()
    broken, ordered = caplog.messages
    assert "breaks its promise about the order of lengths" in broken
    assert ordered.startswith("requests are ordered by arrival (ranker ")
    assert ": alarm, tau_b" in ordered
    served(watch, lengths[1500:], lengths[1500:], 1500)
    assert not fallback.is_wanted
    assert ("arrival_order", "", False) in watch.samples()


@pytest.mark.parametrize("reason", ["chance", "prompt"])
def test_without_a_promise_the_figures_decide(reason):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 1000, 600)
    noise = 500 * random.normal(size=600)
    watch = watching(nan)
    for n, length in enumerate(lengths.tolist()):
        size, score = (5, noise[n]) if reason == "chance" else (length, length + noise[n])
        view = RequestView("", n, 0.0, size, score=float(score), generated_tokens=length)
        watch.queued(view, 0.0)
        watch.finished(view, 2.0)
    assert watch.reason == reason
    assert ("arrival_order", "", False) in watch.samples()  # nothing to switch


def test_a_new_revision_starts_anew_and_a_thread_counts():
    present, fallback = [ranker(0.9)], ArrivalFallback(load_policy("pars"))
    watch = RankWatch(lambda: present[0], fallback)
    lengths = np.random.default_rng(0).permutation(300)
    served(watch, -lengths, lengths)
    wait_until(lambda: fallback.is_wanted)
    present[0] = ranker(0.9, "r2")
    served(watch, lengths, lengths, 300)
    wait_until(lambda: watch.revision == present[0].revision and not fallback.is_wanted)
    assert watch.figures.num_answers == 0
    served(watch, lengths, lengths, 600)
    wait_until(lambda: watch.figures.num_answers == 300)
    assert watch.reason == ""
    watch.close()


def test_metrics_leave_out_what_is_undefined():
    watch = watching(nan)
    served(watch, range(10), range(10))
    assert {name for name, _, _ in watch.samples()} == {
        *("rank_answers", "rank_alarm", "arrival_order"),
    }
    served(watch, range(30), range(30), 10)
    assert ("rank_tau_b", "", 1.0) in watch.samples()


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
    engine = Engine(fallback, instance, observers=[watching(0.65, fallback)])
    engine.submit_all(requests)
    until_s = 0.0
    while engine.advance(until_s := until_s + 0.5) < inf:
        for request in engine.ranked.requests if fallback.switch() else ():
            if request.is_waiting and request.rank is not None and not request.is_gone:
                engine.ranked.wait_again(request)
    protected = engine.timeline(requests)
    e2e_s = simulate(requests, load_policy("fcfs"), instance).e2e_s()
    assert not np.isnan(protected.finished_s).any()
    assert fallback.is_active == (kind == "inverted")
    if kind == "good":
        assert np.mean(protected.e2e_s()) < 0.9 * np.mean(e2e_s)
    else:
        assert np.mean(protected.e2e_s()[2000:]) < 1.05 * np.mean(e2e_s[2000:])
