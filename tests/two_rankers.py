"""A small ranker, then a large one while the request waits: `python tests/two_rankers.py`.

    python tests/two_rankers.py SMALL LARGE TEST.parquet --cost-ms .2 2.3

Simulated on `llama-3-8b@a100-80g`. Each ranker has a core of its own, and scores one prompt after
the other. The large one re-ranks requests that wait: the next in the queue first, or the last.
"""

import argparse
import sys
from heapq import heappush
from math import inf, nextafter
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scheduler_adapters.policy import load_policy
from scheduler_adapters.reporting.latency_tables import interval, with_interval
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.studies.rivals import LOADS, served_per_s
from scheduler_adapters.workload.arrivals import poisson_arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.score_sources import BundleScores

SEATS, SEEDS, REQUESTS, HOLD_S = (16, 64, 256), range(5), 2000, 0.05
ROWS = {
    "then large, next first": (1.0, False),
    "then large, last first": (1.0, True),
    "then large, next first, 10 % of a core": (0.1, False),
    "then large, last first, 10 % of a core": (0.1, True),
}
"""Share of a core, and whether the last of the queue is scored first."""
FREE = ("small, free", "large, free", "oracle")


def delayed(requests: Requests, scores: np.ndarray, cost_s: float) -> Requests:
    """Return requests with scores that a core makes in order of arrival.

    As in an engine, a request is held until its score is there, or for `HOLD_S`.
    """
    ready_s, done_s = 0.0, np.empty(len(requests))
    for row, arrival_s in enumerate(requests.arrival_s):
        done_s[row] = ready_s = max(ready_s, arrival_s) + cost_s
    return make_requests(
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        arrival_s=np.minimum(done_s, requests.arrival_s + HOLD_S),
        scores=scores,
        score_s=done_s,
    )


def reranked(requests: Requests, scores: np.ndarray, cost_s: float, is_last: bool, instance):
    """Simulate requests whose score is replaced while they wait."""
    engine, at_s, left = Engine(load_policy("pars"), instance), 0.0, set(range(len(requests)))
    engine.submit_all(requests)
    while True:
        next_s, waiting = engine.advance(at_s), []
        for row in list(left) if engine.ranked.num_waiting else ():
            state = engine.requests[row]
            if state.is_gone or not state.is_waiting:
                left.discard(row)  # running ones do not wait again here: KV memory suffices
            elif state.rank:
                waiting.append((state.view.score if state.view.score is not None else 0.0, row))
        if waiting:
            row = (max if is_last else min)(waiting)[1]
            left.discard(row)
            at_s += cost_s
            state = engine.requests[row]
            heappush(engine.ranked.late_scores, (at_s, row, state, float(scores[row])))
        elif next_s == inf:
            return engine.timeline(requests)
        else:
            at_s = max(at_s, nextafter(next_s, inf))


def figures(given: Requests, small, large, costs_s, instance) -> dict[str, float]:
    """Return the mean normalised latency of each system, s/token."""
    pars, by_small = load_policy("pars"), delayed(given, small, costs_s[0])
    runs = {
        "fcfs": simulate(given, load_policy("fcfs"), instance),
        "small": simulate(by_small, pars, instance),
        "large": simulate(delayed(given, large, costs_s[1]), pars, instance),
    }
    for name, scores in zip(FREE, (small, large, given.output_tokens), strict=True):
        runs[name] = simulate(given.with_scores(scores), pars, instance)
    for name, (share, is_last) in ROWS.items():
        runs[name] = reranked(by_small, large, costs_s[1] / share, is_last, instance)
    return {
        name: float(np.mean((run.finished_s - given.arrival_s) / given.output_tokens))
        for name, run in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("small")
    parser.add_argument("large")
    parser.add_argument("test")
    parser.add_argument("--cost-ms", type=float, nargs=2, default=(0.2, 2.3))
    options = parser.parse_args()
    test = pd.read_parquet(options.test)
    costs_s = [ms / 1e3 for ms in options.cost_ms]
    found = [
        BundleScores(each).score_prompts(test["prompt"].tolist())
        for each in (options.small, options.large)
    ]
    # One scale, as scores of both stand in one queue.
    small, large = ((own.values - own.values.mean()) / own.values.std() for own in found)
    lengths = test["output_tokens"].to_numpy()
    for seats in SEATS:
        instance = Instance.preset("llama-3-8b@a100-80g", max_num_seqs=seats)
        rows: dict[str, list[dict[str, float]]] = {load: [] for load in LOADS}
        for seed in SEEDS:
            drawn = np.random.default_rng(seed).permutation(len(test))[:REQUESTS]
            sizes = {
                "prompt_tokens": found[0].prompt_tokens[drawn],
                "output_tokens": lengths[drawn],
            }
            rate = served_per_s(make_requests(**sizes), instance)
            for load, times in LOADS.items():
                arrival_s = np.zeros(REQUESTS)
                if times < inf:
                    arrival_s = poisson_arrivals_s(REQUESTS, rate_per_s=times * rate, seed=seed)
                given = make_requests(**sizes, arrival_s=arrival_s)
                rows[load].append(figures(given, small[drawn], large[drawn], costs_s, instance))
        for load, runs in rows.items():
            means = pd.DataFrame(runs)
            print(f"\n{seats} seats, {load}: s/token", means.mean().round(4).to_dict())
            for name in means.columns[2:]:
                less = (1 - means[name] / means["small"]).tolist()
                wins = np.mean(less) >= 0.02 and interval(less)[0] > 0
                said = f"less than small {with_interval(less, '{:.1%}')}{' wins' * bool(wins)}"
                print(f"  {name:40} {said}", flush=True)


if __name__ == "__main__":
    main()
