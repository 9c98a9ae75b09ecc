"""Bursts with recorded lengths and a ranker's scores through vLLM: latencies, and each step's time.

    python -m benchmarks.gpu.burst prepare TRAINED requests.csv
    python -m benchmarks.gpu.burst serve requests.csv --shape 7b
    python -m benchmarks.gpu.burst prepare TRAINED chats.csv --model FOLDER
    python -m benchmarks.gpu.burst serve chats.csv --model FOLDER    natural ends

TRAINED is the folder of a training run. `serve` prints one JSON object per burst. One engine serves
all bursts of as many seats. The order of arrival is drawn for each seed; so is that of the orders
of service. A chat model answers greedily; the oracle knows the lengths of a burst before.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from lengthwise.strict_json import parsed, to_json
from scheduler_adapters.engines.chat_model import chat_ids
from scheduler_adapters.engines.vllm_v1.in_process import (
    OfflineConfig,
    VllmDriver,
    longest_context,
    open_driver,
    scheduler_of,
)
from scheduler_adapters.policy import load_policy
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.workload.requests import Requests
from scheduler_adapters.workload.traces import read_trace

ORDERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "fcfs": ("fcfs", {}),
    "pars, waiting": ("pars", {"guard": "waiting"}),
    "pars, overtaking": ("pars", {"guard": "overtaking"}),
    "oracle": ("oracle", {"guard": "waiting"}),
}
"""Order of service (PARS: with its guard) -> policy and its settings."""
_WARM_UP: Final = {"requests": 128, "tokens": 48}
COLUMNS: Final = (
    "step_s", "cpu_s", "schedule_s", "update_s", "batch", "tokens", "context", "longest", "waiting",
)  # fmt: skip
"""Of one step: seconds of the wall and of the process's CPU; within them schedule() and
update_from_output(); then requests of the batch, their tokens, the sum and the greatest of their
contexts, and the requests that wait."""
_ANSWER: Final = 1024
"""Limit of a chat model's answer, as in datasets/smollm2-instruct."""
_now: Final = time.perf_counter


def prepare(trained: Path, out: Path, count: int, model: Path | None) -> None:
    """Write `count` held-out prompts of a training run: token counts and scores, no text.

    With `model` also their token ids in its chat template, into OUT.json.
    """
    from scheduler_adapters.workload.score_sources import BundleScores

    held_out = pd.read_parquet(trained / "test.parquet").head(2 * count)
    drawn = held_out.iloc[np.sort(np.random.default_rng(0).permutation(len(held_out))[:count])]
    scored = BundleScores(trained / "bundle").score_prompts(drawn["prompt"].tolist())
    columns = {"prompt_tokens": scored.prompt_tokens, "output_tokens": drawn["output_tokens"]}
    if model is not None:
        chats = chat_ids(model, drawn["prompt"].tolist())[0]
        columns["prompt_tokens"] = [*map(len, chats)]
        out.with_suffix(".json").write_text(to_json(chats))
    pd.DataFrame({**columns, "score": scored.values}).to_csv(out, index=False)


def plan(seeds: int) -> list[tuple[int, str]]:
    """Return the bursts in their order: seed, and order of service."""
    drawn = (np.random.default_rng(seed).permutation([*ORDERS]) for seed in range(seeds))
    return [(seed, str(name)) for seed, names in enumerate(drawn) for name in names]


def serve(
    driver: VllmDriver, requests: Requests, seed: int, name: str, chats: Sequence[list[int]] = ()
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Serve one burst, of `chats` if any; returns its figures and its steps.

    The lengths of the answers to chats are written into the requests.
    """
    order = np.random.default_rng(seed).permutation(len(requests))
    arrived = requests.take(order)
    if name == "oracle":
        arrived = arrived.with_scores(arrived.output_tokens)
    if chats:
        arrived = replace(arrived, output_tokens=np.full(len(order), _ANSWER))
    policy, settings = ORDERS[name]
    made, times = load_policy(policy, **settings), StepTimes()
    with times.watching(driver.engine):
        timeline = driver.serve(
            arrived,
            clock=driver.clock("wall")[1],
            seed=seed,
            policy=made,
            prompts=[chats[row] for row in order] if chats else None,
        )
    requests.output_tokens[order] = timeline.requests.output_tokens
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


def warm_up(driver: VllmDriver, requests: Requests, chats: Sequence[list[int]]) -> None:
    """Serve short requests in each order, so that no later burst loads code; chats once, whole."""
    if chats:
        serve(driver, requests, 0, "fcfs", chats)
    few = requests.take(np.arange(min(_WARM_UP["requests"], len(requests))))
    few.output_tokens[:] = np.minimum(few.output_tokens, _WARM_UP["tokens"])
    for name in ORDERS:
        serve(driver, few, 0, name)


def serve_all(options: argparse.Namespace) -> None:
    """Serve the bursts, in one engine for each number of seats; each is reported as it ends."""
    requests = read_trace(options.requests, limit=options.count, has_times=False)
    own = {name: getattr(options, name) for name in ("shape", "kv_cache_mib", "engine", "model")}
    chats = parsed(options.requests.with_suffix(".json").read_text()) if options.model else []
    longest = max([longest_context(requests), *(len(chat) + _ANSWER + 1 for chat in chats)])
    for seats in options.max_num_seqs:
        config = OfflineConfig(scheduler="fcfs", max_num_seqs=seats, **own)
        with open_driver(config, max_model_len=longest) as driver:
            warm_up(driver, requests, chats)
            for seed, name in plan(options.seeds):
                figures, steps = serve(driver, requests, seed, name, chats)
                print(to_json({"seats": seats, **figures}), flush=True)
                if (path := options.steps) is not None:
                    header = not path.exists()
                    steps.to_csv(path, mode="a", header=header, index=False, float_format="%.6f")


class StepTimes:
    """Steps of a vLLM engine in this process, a row of `COLUMNS` each.

    An asynchronous engine schedules the next step before it reads the outcome of the present one.
    A row has the batch of the outcome, and the time of the scheduling within the same turn.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        self._spent_s = dict.fromkeys(("schedule", "update"), 0.0)
        self._batch: tuple[int, ...] = ()

    @contextmanager
    def watching(self, engine: Any) -> Iterator[None]:
        """Record the steps of an engine that `open_engine` has opened, until the end."""
        scheduler, step = scheduler_of(engine), engine.step
        schedule, update = scheduler.schedule, scheduler.update_from_output
        before: tuple[float, float] | None = None

        def scheduled(*arguments: Any, **named: Any) -> Any:
            began_s = _now()
            plan = schedule(*arguments, **named)
            self._spent_s["schedule"] += _now() - began_s
            return plan

        def updated(plan: Any, *arguments: Any, **named: Any) -> Any:
            sizes = plan.num_scheduled_tokens
            requests = map(scheduler.requests.get, sizes)
            contexts = [one.num_computed_tokens for one in requests if one is not None]
            if contexts:
                self._batch = len(sizes), sum(sizes.values()), sum(contexts), max(contexts)
            began_s = _now()
            outputs = update(plan, *arguments, **named)
            self._spent_s["update"] += _now() - began_s
            return outputs

        def stepped() -> Any:
            nonlocal before
            before = before or (_now(), time.process_time())
            outputs = step()
            if self._batch:
                after = _now(), time.process_time()
                took_s = after[0] - before[0], after[1] - before[1], *self._spent_s.values()
                self.rows.append((*took_s, *self._batch, len(scheduler.waiting)))
                self._spent_s = dict.fromkeys(self._spent_s, 0.0)
                before, self._batch = after, ()
            return outputs

        scheduler.schedule, scheduler.update_from_output, engine.step = scheduled, updated, stepped
        try:
            yield
        finally:
            # The driver has set the scheduler's own methods back by itself.
            del engine.step
            for name in ("schedule", "update_from_output"):
                vars(scheduler).pop(name, None)

    def table(self) -> pd.DataFrame:
        """Return a row per step."""
        return pd.DataFrame(self.rows, columns=list(COLUMNS))


def summary(steps: pd.DataFrame) -> dict[str, Any]:
    """Return the durations of a run's steps, together and by kind."""
    kinds = np.where(steps.tokens > steps.batch, "prefill", "decode")
    found = {"all": _durations(steps)}
    found |= {str(kind): _durations(part) for kind, part in steps.groupby(kinds)}
    means = {"mean_batch": float(steps.batch.mean()), "mean_context": float(steps.context.mean())}
    return means | {"cpu_s": float(steps.cpu_s.sum())} | found


def _durations(steps: pd.DataFrame) -> dict[str, float]:
    step_s, schedule_s = steps[["step_s", "schedule_s"]].mean()
    return {"steps": len(steps), "step_ms": step_s * 1e3, "schedule_us": schedule_s * 1e6}


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
    served.add_argument("--max-num-seqs", type=int, nargs="+", default=[64], help="an engine each")
    served.add_argument("--kv-cache-mib", type=int, default=40_960)
    served.add_argument("--engine", type=json.loads, default={})
    for one in (made, served):
        one.add_argument("--count", type=int, default=1000, help="of requests")
        one.add_argument("--model", type=Path, help="folder of a chat model that answers")
    options = parser.parse_args(arguments)
    if options.command == "prepare":
        prepare(options.trained, options.out, options.count, options.model)
    else:
        serve_all(options)


if __name__ == "__main__":
    main()
