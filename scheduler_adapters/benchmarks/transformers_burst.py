"""`bench-transformers`: a burst of requests through transformers under several schedulers.

The model has random weights and the shape of a real one. Each request gets exactly the output
tokens of its response, so that schedulers are compared on the same work.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from lengthwise.errors import require
from lengthwise.strict_json import to_json
from lengthwise.tables.files import write_whole
from scheduler_adapters.commands.experiment_settings import (
    check_folder,
    check_policies,
    load_named,
    policy_of,
)
from scheduler_adapters.engines.random_model import device_name, find_device
from scheduler_adapters.engines.transformers_batching.in_process import BatchingConfig, open_driver
from scheduler_adapters.reporting.latency_tables import text_of
from scheduler_adapters.timeline.latency_metrics import statistic, summarize, token_gaps
from scheduler_adapters.timeline.live_log import TimelineLog
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.validation.engine_trial import StepRecorder
from scheduler_adapters.workload.requests import Requests
from scheduler_adapters.workload.workload import WorkloadConfig

_MOST_REQUESTS: Final = 2000
_CLASS_STREAM: Final = 11
_TAU_B: Final = 0.6
"""Kendall tau-b of synthetic scores with the true lengths."""
_CLASSES, _TARGETS_S = ("paying", "free"), (0.1, 0.5)
"""Classes of equal size, and their target times between tokens, where a trace has no classes."""

_SHOWN: Final = (
    "ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "e2e_p99_s", "normalized_latency_mean_s",
    "normalized_latency_p90_s", "output_tokens_per_s", "num_preemptions",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BurstConfig(BatchingConfig):
    """The requests, the schedulers and the model."""

    policies: list[str] = field(default_factory=lambda: ["fcfs", "pars", "slai", "oracle"])
    """Names of policies, or import paths."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of policies by name, e.g. {"slai": {"max_tokens": 256}}. A made-up name has a key
    policy: {"slai-late": {"policy": "slai", "offset": 10.0}}."""
    trace: Path | None = None
    """.csv, .parquet or .jsonl as in `simulate`, without its arrival times; none: lengths of chats,
    as in `simulate`."""
    num_requests: int | None = None
    """At most this many requests, drawn at random; none: 2,000 on a GPU, 200 on a CPU."""
    max_context: int = 4096
    """Longer prompts and outputs are cut to a half of this each."""
    scores: str | None = None
    """Source of scores, as in `simulate`."""
    out: Path | None = None
    """Folder for POLICY.jsonl, summary.csv and POLICY.steps.csv; `simulate` takes the last as step
    times (--profile MODEL@GPU:affine=FILE)."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        for name in ("num_requests", "max_num_seqs", "max_tokens"):
            value = getattr(self, name)
            require(name, value, value is None or value >= 1, "a number >= 1")
        check_policies(self.policies, self.settings)
        check_folder(self.out)
        require("max_context", self.max_context, self.max_context >= 2, "2 tokens or more")
        _ = self.setup  # which refuses what it does not know

    @property
    def setup(self) -> WorkloadConfig:
        """Settings of requests and scores of `simulate`."""
        return WorkloadConfig(
            trace=() if self.trace is None else (str(self.trace),),
            num_requests=sys.maxsize if self.trace else self.num_requests or _MOST_REQUESTS,
            scores=self.scores,
            tau_b=_TAU_B,
            seed=self.seed,
        )

    @property
    def most_requests(self) -> int:
        """`num_requests`, or what the device serves in minutes."""
        is_gpu = find_device(self.device).startswith("cuda")
        return self.num_requests or (_MOST_REQUESTS if is_gpu else 200)


def burst(config: BurstConfig) -> None:
    """Serve a burst with transformers' continuous batching, once under each scheduler.

    A random model of the given shape answers requests of real lengths, all at 0 s. Needs a GPU for
    any shape but tiny.

    Examples:
      python -m scheduler_adapters bench-transformers --num-requests 40 --max-num-seqs 4
      python -m scheduler_adapters bench-transformers --shape 7b --out burst-7b
      python -m scheduler_adapters bench-transformers --trace with_prompts.parquet \\
          --scores bundle:run/bundle
      python -m scheduler_adapters bench-transformers --shape 7b --policies '[fcfs, slai]' \\
          --settings '{slai: {max_tokens: 512}}' --trace requests.parquet

    A policy that runs twice tells how far the engine is from itself: '[fcfs, pars, again]' with
    --settings '{again: {policy: fcfs}}'.
    """
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.WARNING)
    requests = load_burst(config)
    rows = []
    for name, timeline in serve_burst(requests, config):
        rows.append(row_of(name, timeline))
        if config.out is not None:
            # Not `save_table`, whose module needs matplotlib, which the extra lacks.
            to_csv = partial(pd.DataFrame(rows).to_csv, index=False)
            write_whole(config.out / "summary.csv", to_csv)
    if config.json:
        about = {
            "shape": config.shape,
            "device": device_name(find_device(config.device)),
            "num_requests": len(requests),
            "max_num_seqs": config.max_num_seqs,
            "max_tokens": config.max_tokens,
            "scores": config.setup.score_source(requests),
            "seed": config.seed,
        }
        print(to_json({**about, "runs": rows}))
    else:
        table = pd.DataFrame(rows)
        print(text_of(table[["policy", *_SHOWN, *table.filter(regex="^tbt_p99_")]]))


def load_burst(config: BurstConfig) -> Requests:
    """Return the requests, all at 0 s, with classes; raises as `WorkloadConfig.load`."""
    requests = config.setup.load()
    random = np.random.default_rng((config.seed, _CLASS_STREAM))
    if len(requests) > config.most_requests:
        rows = random.permutation(len(requests))[: config.most_requests]
        requests = requests.take(np.sort(rows))
    requests = replace(
        requests,
        arrival_s=np.zeros(len(requests)),
        prompt_tokens=np.minimum(requests.prompt_tokens, config.max_context // 2),
        output_tokens=np.minimum(requests.output_tokens, config.max_context // 2),
        request_id=np.arange(len(requests)).astype(str),
    )
    if not requests.user_class.astype(bool).any():
        pays = random.random(len(requests)) < 0.5
        classes = {"user_class": np.where(pays, *_CLASSES), "tbt_s": np.where(pays, *_TARGETS_S)}
        requests = replace(requests, **classes)
    return requests


def serve_burst(requests: Requests, config: BurstConfig) -> Iterator[tuple[str, Timeline]]:
    """Yield each policy with its timeline, which is written to the folder of `config` as well.

    Raises UnsupportedByEngine, or ConfigError: no such policy, shape or device.
    """
    from scheduler_adapters.engines.transformers_batching.rank_scheduler import use_policy

    for name in config.policies:  # what cannot run is refused before a model is made
        use_policy(load_named(name, config.settings), {})
    driver = open_driver(config, requests)
    for name in config.policies:
        by_oracle = policy_of(name, config.settings) == "oracle"
        scored = config.setup.scored(requests, by_oracle=by_oracle)
        (_, clock), recorder = driver.clock(None), StepRecorder()
        observers: list[EngineObserver] = [recorder]
        with ExitStack() as files:
            if config.out is not None:
                path = config.out / f"{name.replace(':', '_').replace('/', '_')}.jsonl"
                config.out.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                observers.append(TimelineLog(str(path), start_s=0.0))
                files.callback(observers[-1].close)
            policy = load_named(name, config.settings)
            run = driver.serve(
                scored, clock=clock, seed=config.seed, policy=policy, observers=observers
            )
        if config.out is not None:
            steps = pd.DataFrame([asdict(step) for step in recorder.steps])
            steps.to_csv(path.with_suffix(".steps.csv"), index=False)
        yield name, run.timeline


def row_of(policy: str, timeline: Timeline) -> dict[str, Any]:
    """Return the figures of a run as a flat record."""
    summary = summarize(timeline)
    row: dict[str, Any] = {
        "policy": policy,
        "num_finished": summary.num_finished,
        "num_preemptions": summary.num_preemptions,
        "output_tokens_per_s": summary.output_tokens_per_s,
        "makespan_s": summary.makespan_s,
    }
    for metric in ("ttft", "tpot", "e2e", "normalized_latency"):
        for name in ("mean", "p50", "p90", "p99"):
            row[f"{metric}_{name}_s"] = getattr(getattr(summary, f"{metric}_s"), name)
    for name in np.unique(timeline.requests.user_class):
        gaps_s = token_gaps(timeline.take(timeline.requests.user_class == name))
        row[f"tbt_p99_{name}_s"] = statistic(*gaps_s).p99
    return row
