"""Bursts with recorded lengths and a ranker's scores through vLLM: latencies, and each step's time.

    python -m benchmarks.gpu.burst prepare TRAINED requests.csv
    python -m benchmarks.gpu.burst serve requests.csv --shape 7b

TRAINED is the folder of a training run. `serve` prints one JSON object per burst. One engine serves
all bursts. The order of arrival is drawn for each seed; so is that of the orders of service.
"""

import argparse
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from benchmarks.gpu.step_times import StepTimes, summary
from lengthwise.strict_json import to_json
from scheduler_adapters.engines.vllm_v1.in_process import (
    OfflineConfig,
    VllmDriver,
    longest_context,
    open_driver,
)
from scheduler_adapters.policy import load_policy
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.workload.requests import Requests, make_requests

ORDERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "fcfs": ("fcfs", {}),
    "pars, waiting": ("pars", {"guard": "waiting"}),
    "pars, overtaking": ("pars", {"guard": "overtaking"}),
    "oracle": ("oracle", {"guard": "waiting"}),
}
"""Order of service (PARS: with its guard) -> policy and its settings."""
_WARM_UP: Final = {"requests": 128, "tokens": 48}


def prepare(trained: Path, out: Path, count: int) -> None:
    """Write `count` held-out prompts of a training run: token counts and scores, no text."""
    from scheduler_adapters.workload.score_sources import BundleScores

    held_out = pd.read_parquet(trained / "test.parquet").head(2 * count)
    rows = np.sort(np.random.default_rng(0).permutation(len(held_out))[:count])
    drawn = held_out.iloc[rows]
    scored = BundleScores(trained / "bundle").score_prompts(drawn["prompt"].tolist())
    columns = {"prompt_tokens": scored.prompt_tokens, "output_tokens": drawn["output_tokens"]}
    pd.DataFrame({**columns, "score": scored.values}).to_csv(out, index=False)


def read_requests(path: Path, count: int) -> Requests:
    """Return a burst of the first `count` requests of a file that `prepare` has written."""
    table = pd.read_csv(path, nrows=count)
    names = ("prompt_tokens", "output_tokens", "score")
    prompt_tokens, output_tokens, scores = (table[name].to_numpy() for name in names)
    return make_requests(prompt_tokens=prompt_tokens, output_tokens=output_tokens, scores=scores)


def plan(seeds: int) -> list[tuple[int, str]]:
    """Return the bursts in their order: seed, and order of service."""
    drawn = (np.random.default_rng(seed).permutation(len(ORDERS)) for seed in range(seeds))
    names = list(ORDERS)
    return [(seed, names[number]) for seed, numbers in enumerate(drawn) for number in numbers]


def serve(
    driver: VllmDriver, requests: Requests, seed: int, name: str
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Serve one burst; returns its figures and its steps."""
    arrived = requests.take(np.random.default_rng(seed).permutation(len(requests)))
    if name == "oracle":
        arrived = arrived.with_scores(arrived.output_tokens)
    policy, settings = ORDERS[name]
    made, times = load_policy(policy, **settings), StepTimes()
    with times.watching(driver.engine):
        timeline = driver.serve(arrived, clock=driver.clock("wall")[1], seed=seed, policy=made)
    found, steps = summarize(timeline), times.table()
    latencies = {
        "whole_s": found.makespan_s,
        "s_per_token": found.normalized_latency_s.mean,
        "s_per_token_p90": found.normalized_latency_s.p90,
        "e2e_s": found.e2e_s.mean,
        "ttft_s": found.ttft_s.mean,
        "preemptions": found.num_preemptions,
    }
    run = {"seed": seed, "order": name, "requests": len(arrived)}
    return run | latencies | summary(steps), steps.assign(seed=seed, order=name)


def warm_up(driver: VllmDriver, requests: Requests) -> None:
    """Serve short requests in each order, so that no later burst loads code."""
    few = requests.take(np.arange(min(_WARM_UP["requests"], len(requests))))
    few.output_tokens[:] = np.minimum(few.output_tokens, _WARM_UP["tokens"])
    for name in ORDERS:
        serve(driver, few, 0, name)


def serve_all(options: argparse.Namespace) -> None:
    """Serve the bursts in one engine; each is reported as it ends."""
    requests = read_requests(options.requests, options.count)
    names = ("shape", "max_num_seqs", "kv_cache_mib", "engine")
    own = {name: getattr(options, name) for name in names}
    config = OfflineConfig(scheduler="fcfs", **own)
    with open_driver(config, max_model_len=longest_context(requests)) as driver:
        warm_up(driver, requests)
        for seed, name in plan(options.seeds):
            figures, steps = serve(driver, requests, seed, name)
            print(to_json(figures), flush=True)
            if (path := options.steps) is not None:
                header = not path.exists()
                steps.to_csv(path, mode="a", header=header, index=False, float_format="%.6f")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    made, served = commands.add_parser("prepare"), commands.add_parser("serve")
    made.add_argument("trained", type=Path)
    made.add_argument("out", type=Path)
    served.add_argument("requests", type=Path)
    served.add_argument("--steps", type=Path, help="CSV to which all steps are added")
    served.add_argument("--seeds", type=int, default=3)
    served.add_argument("--shape", default="7b")
    served.add_argument("--max-num-seqs", type=int, default=64)
    served.add_argument("--kv-cache-mib", type=int, default=40_960)
    served.add_argument("--engine", type=json.loads, default={})
    for one in (made, served):
        one.add_argument("--count", type=int, default=1000, help="of requests")
    options = parser.parse_args(arguments)
    if options.command == "prepare":
        prepare(options.trained, options.out, options.count)
    else:
        serve_all(options)


if __name__ == "__main__":
    main()
