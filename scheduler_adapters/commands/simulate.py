"""`simulate`: one policy on one trace, on one instance or a cluster, in virtual time."""

import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lengthwise.command_line.options import common_options
from lengthwise.errors import ConfigError
from lengthwise.progress import Progress
from lengthwise.settings import Count, settings
from lengthwise.strict_json import to_json
from scheduler_adapters.commands.experiment_settings import Setup, check_one_of, check_place
from scheduler_adapters.engines.score_order import ScoreOrder, past_lower_score_fraction
from scheduler_adapters.policies.fair_shares import load_shared
from scheduler_adapters.policy import Policy
from scheduler_adapters.reporting.latency_tables import text_of
from scheduler_adapters.simulator.cluster import ClusterRun
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.observers import ProgressLine
from scheduler_adapters.simulator.simulate import Interrupted
from scheduler_adapters.timeline.latency_metrics import Summary, statistic, summarize
from scheduler_adapters.timeline.qoe import LEAST_QOE, reading_figures
from scheduler_adapters.timeline.timeline import Timeline, write_timeline
from scheduler_adapters.workload.score_sources import with_lengths


@settings
class SimulateConfig(Setup):
    """A policy, its instances, and the output files."""

    policy: str = "pars"
    """Import path package.module:callable, or a name: fcfs, pars, pointwise, listwise, oracle,
    sarathi, vllm-prefill-first, orca, request-level, slai, rad, rad-twin, round-robin, pars-paper,
    pascal, srpt, uniboost, uniboost-learned, shortest-prompt, residual-prompt,
    virtual-token-counter."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the policy, e.g. {"guard": "waiting"}, and shares of clients, as in serve-vllm
    (on where a trace names several): {"shares": "none"}. With {"offload": true} and
    --host-gb-per-s, fcfs, round-robin and pascal keep evicted KV in host memory."""
    out: Path | None = None
    """Write every request with its token times to this .parquet or .jsonl file."""
    clients: Count | None = None
    """Closed loop: this many requests in flight, each replaced when it finishes."""
    outage: list[str] = field(default_factory=list)
    """Outages of instances, each INSTANCE@START or INSTANCE@START-END in seconds. Requests of a
    dead instance are placed again."""
    telemetry_period_s: float = 0.0
    """Time between two updates of the instances' state that the placement reads; 0: always up to
    date. Its own decisions since then are included."""
    telemetry_max_age_s: float = inf
    """Age of that state above which requests are placed on the shortest queue."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.faults["outages"] and self.placement is None:
            raise ConfigError(f"outage is {self.outage} without a placement; name one")
        check_one_of(self, ("rate_per_s", "clients"))
        self.need_rate(self.rate_per_s is not None)
        check_place(self.out, ".parquet", ".jsonl")

    def policy_maker(self, clients: Collection[str] = ()) -> Callable[[], Policy]:
        """Return the maker of the policy, with shares of several clients."""
        return partial(load_shared, self.policy, clients, **self.settings)

    @property
    def faults(self) -> dict[str, Any]:
        """Outages of instances, and limits of the age of the state that the placement reads."""
        age = TelemetryAge(period_s=self.telemetry_period_s, max_age_s=self.telemetry_max_age_s)
        return {"outages": [read_outage(text) for text in self.outage], "age": age}


@common_options(
    *("trace", "lengths", "num_requests", "rate_per_s", "scores", "profile"),
    *("policy", "settings", "out", "json"),
)
def run(config: SimulateConfig) -> None:
    """Simulate one policy on one or many instances in virtual time; prints the table of latencies.

    Examples:
      python -m scheduler_adapters simulate --policy pars --num-requests 2000
      python -m scheduler_adapters simulate --trace trace.csv --policy fcfs --rate-per-s 4 --json
      python -m scheduler_adapters simulate --trace test.parquet --scores bundle:run/bundle
      python -m scheduler_adapters simulate --placement least-kv --instances 8 --rate-per-s 40

    A trace needs a column of prompt tokens and one of output tokens. The columns arrival_s, in
    seconds, score (higher = longer) and cached_tokens, of the prompt, are used if they exist.
    Scores of a bundle or a service need a column prompt, of which missing prompt tokens are
    counted.

    Ctrl-C ends the run; the finished part is written and shown, with exit code 130.
    """
    config.policy_maker()()  # refuses wrong settings before anything is read
    config.loaded_placement()
    config, requests = config.loaded()
    make_policy = config.policy_maker(requests.clients)
    if config.policy == "oracle":
        config = replace(config, scores="oracle")
    requests = with_lengths(config.scored(requests), make_policy())
    stopped: Interrupted | None = None
    orders = [ScoreOrder() for _ in range(config.instances)]
    cluster: ClusterRun | None = None
    with Progress(1) as progress:
        progress.begin(config.policy)
        line = ProgressLine(progress, len(requests))
        try:
            timeline, cluster = config.serve(
                requests,
                make_policy,
                clients=config.clients,
                observers=lambda number: [line, orders[number]],
                **config.faults,
            )
            progress.step(config.policy)
        except Interrupted as error:
            timeline, stopped = error.timeline, error
    if config.out is not None:
        write_timeline(timeline, config.out)
    summary = summarize(timeline)
    _show(config, summary, timeline, cluster, past_lower_score_fraction(orders))
    if stopped is not None:
        print(f"{summary.num_unfinished} requests are left out of E2E", file=sys.stderr)
        raise stopped


def _show(
    config: SimulateConfig,
    summary: Summary,
    timeline: Timeline,
    cluster: ClusterRun | None,
    past_lower_score: float,
) -> None:
    reading, moved = reading_figures(timeline), {} if cluster is None else cluster_figures(cluster)
    if config.json:
        named: dict[str, Any] = {"policy": config.policy, "scores": config.scores}
        named["past_lower_score_fraction"] = past_lower_score
        if config.placement is not None:
            named |= {"placement": config.placement, "instances": config.instances}
        print(to_json({**named, **moved, **summary.to_dict(), **reading}))
        return
    print(format_summary(config.policy, summary))
    if past_lower_score > 0:
        print(f"{past_lower_score:.1%} of requests were admitted while a lower score waited")
    if reading:
        print(format_reading(summary, reading))
    if moved:
        on = f"placement {config.placement} over {config.instances} instances"
        print(f"{on}: {format_cluster(moved)}")
    arrivals = config.arrivals_text(config.rate_per_s, timeline.requests)
    if config.clients is not None:
        arrivals = f"closed loop of {config.clients} clients"
    print(config.conditions(arrivals, len(timeline.requests)))


def cluster_figures(cluster: ClusterRun) -> dict[str, Any]:
    """Return the figures of migrations, outages and telemetry."""
    downtime_s = statistic(np.array([move.downtime_s for move in cluster.migrations]))
    return {
        "migration_downtime_s": asdict(downtime_s),
        "num_replaced": int(cluster.num_replaced.sum()),
        "num_fallbacks": cluster.num_fallbacks,
    }


def format_cluster(figures: Mapping[str, Any]) -> str:
    """Return the figures of migrations and outages as a sentence."""
    counts = {
        "migrations": figures["migration_downtime_s"]["count"],
        "times a request was placed again after an outage": figures["num_replaced"],
        "requests went to the shortest queue, telemetry too old": figures["num_fallbacks"],
    }
    texts = [f"{n} {words}" for words, n in counts.items() if n or words == "migrations"]
    if counts["migrations"]:
        p50_s, p99_s = (figures["migration_downtime_s"][part] for part in ("p50", "p99"))
        texts[0] += f", downtime {p50_s:.4f} s (p50), {p99_s:.4f} s (p99)"
    return "; ".join(texts)


def read_outage(text: str) -> Outage:
    """Return the outage of a text INSTANCE@START or INSTANCE@START-END."""
    found = re.fullmatch(r"(\d+)@([\d.]+)(?:-([\d.]+))?", text)
    try:
        instance, at_s, until_s = found.groups() if found else ()
        until = inf if until_s is None else float(until_s)
        return Outage(instance=int(instance), at_s=float(at_s), until_s=until)
    except ValueError as error:
        raise ConfigError(
            f"outage is {text!r} ({error}); write INSTANCE@START-END, such as 0@10-20, or 0@10"
        ) from error


def format_summary(name: str, summary: Summary) -> str:
    """Return the summary as a table for a terminal."""
    rows = [
        {"metric": key} | {part: number for part, number in value.items() if part != "count"}
        for key, value in summary.to_dict().items()
        if isinstance(value, dict) and value["count"] and (key != "qoe" or summary.ttfat_s.count)
    ]
    return (
        f"{name}: {summary.num_finished} of {summary.num_requests} requests finished, "
        f"{summary.num_rejected} rejected, {summary.num_unscored} without a score, "
        f"{summary.num_preemptions} preemptions, "
        f"{summary.output_tokens_per_s:.0f} output tokens/s over {summary.makespan_s:.1f} s\n"
        + text_of(pd.DataFrame(rows))
    )


def format_reading(summary: Summary, reading: Mapping[str, Any]) -> str:
    """Return SLO violations and the tail of the first answer for a terminal."""
    by_class = [
        f"  of class {name!r}: {own['qoe_violations']:.2%}"
        for name, own in reading.get("by_class", {}).items()
    ]
    lines = [
        f"qoe below {LEAST_QOE:g}: {summary.qoe_violations:.2%} of the requests that answer",
        *by_class,
        "tail of first_answer_s by reasoning tokens",
        text_of(pd.DataFrame(reading["first_answer_tail"])),
    ]
    return "\n".join(lines)
