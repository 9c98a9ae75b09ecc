"""`simulate`: one policy on one trace, and one instance or a cluster of them, in virtual time."""

import re
import sys
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.command_line.options import common_options
from lengthwise.command_line.program import INTERRUPTED, print_next
from lengthwise.errors import ConfigError
from lengthwise.progress import Progress
from lengthwise.strict_json import to_json
from scheduler_adapters.commands.experiment_settings import Setup, changed_options, check_place
from scheduler_adapters.policy import Policy, load_policy
from scheduler_adapters.simulator.cluster import ClusterRun
from scheduler_adapters.simulator.cluster.cluster_config import ClusterConfig
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.observers import progress_lines
from scheduler_adapters.simulator.simulate import Interrupted
from scheduler_adapters.timeline.chrome_trace import write_chrome_trace
from scheduler_adapters.timeline.first_answer_tail import reading_figures
from scheduler_adapters.timeline.latency_metrics import Summary, statistic, summarize
from scheduler_adapters.timeline.qoe import LEAST_QOE
from scheduler_adapters.timeline.timeline import Timeline, write_timeline
from scheduler_adapters.workload.requests import Requests


@dataclass(frozen=True, kw_only=True)
class SimulateConfig(Setup, ClusterConfig):
    """What to simulate."""

    policy: str = "pars"
    """Import path package.module:callable, or a name: fcfs, pars, pointwise, listwise, oracle,
    sarathi, vllm-prefill-first, orca, request-level, slai, rad, rad-twin, round-robin, pascal."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the policy takes, e.g. {"starve_after_s": null}; fcfs, round-robin and pascal keep what
    they evict in host memory with {"offload": true} and --host-gb-per-s."""
    out: Path | None = None
    """Write every request with its token times to this .parquet or .jsonl file."""
    clients: int | None = None
    """Closed loop: this many requests in flight, each replaced when it finishes."""
    chrome_trace: Path | None = None
    """Write the phases of every request to this .json file, for ui.perfetto.dev."""
    outage: list[str] = field(default_factory=list)
    """Times in which instances are dead, each INSTANCE@START or INSTANCE@START-END in seconds. What
    was there is placed again."""
    telemetry_period_s: float = 0.0
    """The placement sees the instances as they were at the last multiple of this time, and what it
    has decided since; 0: as they are."""
    telemetry_max_age_s: float | None = None
    """Requests that find older views go to the shortest queue instead; None: of any age."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ClusterConfig.__post_init__(self)
        if self.outages() and self.placement is None:
            raise ConfigError(f"outage is {self.outage} without a placement; name one")
        self.age()
        self.need_rate(self.rate_per_s is not None and self.clients is None)
        if self.rate_per_s is not None and self.clients is not None:
            raise ConfigError(
                f"rate_per_s is {self.rate_per_s} and clients {self.clients}; use one of them: "
                "clients send a request when one is answered"
            )
        check_place(self.out, ".parquet", ".jsonl")
        check_place(self.chrome_trace, ".json")

    def loaded_policy(self) -> Policy:
        """Return a fresh policy: one may count its steps."""
        return load_policy(self.policy, **self.settings)

    def outages(self) -> list[Outage]:
        """Return the times in which instances are dead."""
        return [read_outage(text) for text in self.outage]

    def age(self) -> TelemetryAge:
        """Return how old what the placement sees may be."""
        max_age_s = inf if self.telemetry_max_age_s is None else self.telemetry_max_age_s
        return TelemetryAge(period_s=self.telemetry_period_s, max_age_s=max_age_s)


@common_options(
    *("trace", "lengths", "num_requests", "rate_per_s", "scores", "profile"),
    *("policy", "settings", "out", "json"),
)
def run(config: SimulateConfig) -> int:
    """Simulate one policy on one or many instances in virtual time; prints the table of latencies.

    Examples:
      python -m scheduler_adapters simulate --policy pars --num-requests 2000
      python -m scheduler_adapters simulate --trace trace.csv --policy fcfs --rate-per-s 4 --json
      python -m scheduler_adapters simulate --trace test.parquet --scores bundle:run/bundle
      python -m scheduler_adapters simulate --placement least-kv --instances 8 --rate-per-s 40

    A trace needs a column of prompt tokens and one of output tokens; arrival_s (seconds) and score
    (higher = longer) are used where they exist. With scores of a bundle or a service it needs
    a column prompt, and prompt tokens are counted where they are missing.

    Interrupted with Ctrl-C, what has happened so far is written and shown; exit code 130.
    """
    config.loaded_policy()  # refuses wrong settings before anything is read
    config.loaded_placement()
    config, requests = config.loaded()
    if config.policy == "oracle":
        config = replace(config, scores="oracle")
    requests = config.scored(requests)
    is_whole = True
    cluster: ClusterRun | None = None
    with Progress(1) as progress:
        progress.begin(config.policy)
        try:
            timeline, cluster = _simulate(config, requests, progress)
            progress.step(config.policy)
        except Interrupted as stopped:
            timeline, is_whole = stopped.timeline, False
    files = _write(config, timeline)
    summary = summarize(timeline)
    named: dict[str, Any] = {"policy": config.policy, "scores": config.scores}
    if config.placement is not None:
        named |= {"placement": config.placement, "instances": config.instances}
    if cluster is not None:
        named |= cluster_figures(cluster)
    if config.json:
        print(to_json({**named, **summary.to_dict(), **reading_figures(timeline)}))
    else:
        print(format_summary(config.policy, summary))
        if text := format_reading(summary, timeline):
            print(text)
        if cluster is not None:
            print(
                f"placement {config.placement} over {config.instances} instances: "
                + format_cluster(cluster)
            )
        arrivals = config.arrivals_text(config.rate_per_s, requests)
        if config.clients is not None:
            arrivals = f"closed loop of {config.clients} clients"
        print(config.conditions(arrivals, len(requests)))
        print_next(_next(config))
    if not is_whole:
        left_out = summary.num_unfinished
        print(f"interrupted: {left_out} requests are left out of E2E", file=sys.stderr)
        return INTERRUPTED
    config.log(f"simulate {config.policy}", summary.flat(), files)
    return 0


def _next(config: SimulateConfig) -> str:
    """The same requests under other policies, or the load that such instances bear."""
    if config.placement is None and config.clients is None:
        policies = " ".join(dict.fromkeys(["fcfs", "pars", config.policy]))
        command = f"compare --policies {policies}" + changed_options(config, Setup)
    else:
        by = " --by concurrency" * (config.clients is not None)
        options = changed_options(config, Setup, ClusterConfig, without=["rate_per_s"])
        command = f"capacity --policies {config.policy}{by}{options}"
    return f"python -m scheduler_adapters {command}"


def _simulate(
    config: SimulateConfig, requests: Requests, progress: Progress
) -> tuple[Timeline, ClusterRun | None]:
    observers = progress_lines(progress, requests)
    return config.serve(
        requests,
        config.loaded_policy,
        clients=config.clients,
        observers=lambda number: observers,
        outages=config.outages(),
        age=config.age(),
    )


def cluster_figures(cluster: ClusterRun) -> dict[str, Any]:
    """Return what a run says of moves and deaths, for JSON."""
    downtime_s = statistic(np.array([move.downtime_s for move in cluster.migrations]))
    return {
        "migration_downtime_s": asdict(downtime_s),
        "num_replaced": int(cluster.num_replaced.sum()),
        "num_fallbacks": cluster.num_fallbacks,
    }


def format_cluster(cluster: ClusterRun) -> str:
    """Return the same for a terminal."""
    downtime_s = statistic(np.array([move.downtime_s for move in cluster.migrations]))
    text = f"{downtime_s.count} migrations"
    if downtime_s.count:
        text += f", downtime {downtime_s.p50:.4f} s (p50), {downtime_s.p99:.4f} s (p99)"
    if num_replaced := int(cluster.num_replaced.sum()):
        text += f"; {num_replaced} times a request was placed again as its instance had died"
    if cluster.num_fallbacks:
        text += f"; {cluster.num_fallbacks} requests went to the shortest queue, telemetry too old"
    return text


def read_outage(text: str) -> Outage:
    """Return the outage that INSTANCE@START or INSTANCE@START-END says.

    Raises:
        ConfigError: it says none.
    """
    found = re.fullmatch(r"(\d+)@([\d.]+)(?:-([\d.]+))?", text)
    try:
        instance, at_s, until_s = found.groups() if found else ()
        until = inf if until_s is None else float(until_s)
        return Outage(instance=int(instance), at_s=float(at_s), until_s=until)
    except ValueError as error:
        raise ConfigError(
            f"outage is {text!r} ({error}); write INSTANCE@START-END, such as 0@10-20, or 0@10"
        ) from error


def _write(config: SimulateConfig, timeline: Timeline) -> list[Path]:
    """Write what was asked for; returns the files."""
    writers = ((config.out, write_timeline), (config.chrome_trace, write_chrome_trace))
    for path, write in writers:
        if path is not None:
            write(timeline, path)
    return [path for path, _ in writers if path is not None]


def format_summary(name: str, summary: Summary) -> str:
    """Return the summary as a table for a terminal."""
    lines = [
        f"{name}: {summary.num_finished} of {summary.num_requests} requests finished, "
        f"{summary.num_rejected} rejected, {summary.num_unscored} without a score, "
        f"{summary.num_preemptions} preemptions, "
        f"{summary.output_tokens_per_s:.0f} output tokens/s over {summary.makespan_s:.1f} s",
        f"{'':24}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}",
    ]
    for key, value in summary.to_dict().items():
        if isinstance(value, dict) and value["count"] and (key != "qoe" or summary.ttfat_s.count):
            _, *numbers = value.values()
            lines.append(f"{key:24}" + "".join(f"{number:10.4f}" for number in numbers))
    return "\n".join(lines)


def format_reading(summary: Summary, timeline: Timeline) -> str:
    """Return SLO violations and the tail of the first answer for a terminal; empty without any."""
    figures = reading_figures(timeline)
    if not figures:
        return ""
    lines = [f"qoe below {LEAST_QOE:g}: {summary.qoe_violations:.2%} of the requests that answer"]
    lines += [
        f"  of class {name!r}: {own['qoe_violations']:.2%}"
        for name, own in figures.get("by_class", {}).items()
    ]
    lines.append("tail of first_answer_s by reasoning tokens (requests, percentile, seconds)")
    lines += [
        f"  from {one['reasoning_tokens']:6} {one['count']:8}  p{one['percent']:<4g}"
        f"{one['first_answer_s']:12.4f}"
        for one in figures["first_answer_tail"]
    ]
    return "\n".join(lines)
