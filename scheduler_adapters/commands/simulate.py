"""`simulate`: one policy on one trace, and one instance or a cluster of them, in virtual time."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from scheduler_adapters.commands.setup import Setup, check_place
from scheduler_adapters.placement import Placement, load_placement
from scheduler_adapters.policy import Policy, load_policy
from scheduler_adapters.progress import Progress
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.simulator.observers import progress_lines
from scheduler_adapters.simulator.simulate import Interrupted, simulate
from scheduler_adapters.timeline.chrome_trace import write_chrome_trace
from scheduler_adapters.timeline.metrics import Summary, statistic, summarize
from scheduler_adapters.timeline.migrations import Migration
from scheduler_adapters.timeline.timeline import Timeline, write_timeline
from scheduler_adapters.views import Role
from scheduler_adapters.workload.requests import Requests
from scoring_service.command_line import INTERRUPTED
from scoring_service.errors import ConfigError, at_least, require
from scoring_service.strict_json import to_json


@dataclass(frozen=True, kw_only=True)
class SimulateConfig(Setup):
    """What to simulate."""

    policy: str = "pars"
    """Name of a policy or import path package.module:callable. Names: fcfs, pars, pointwise,
    listwise, oracle, sarathi, vllm-prefill-first, orca, request-level, slai, rad, rad-twin,
    round-robin, pascal."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the policy takes, e.g. {"starve_after_s": null}."""
    out: Path | None = None
    """Write every request with its token times to this .parquet or .jsonl file."""
    clients: int | None = None
    """Closed loop: this many requests in flight, each replaced when it finishes."""
    chrome_trace: Path | None = None
    """Write the phases of every request to this .json file, for ui.perfetto.dev."""
    placement: str | None = None
    """Simulate a cluster: name of the placement that says which instance serves a request, or
    import path package.module:callable. Names: round-robin, random, shortest-queue, least-kv,
    memory-aware, distserve, pascal."""
    placement_settings: dict[str, Any] = field(default_factory=dict)
    """What the placement takes, e.g. {"migration": "never"}."""
    instances: int = 1
    """Equal instances of the cluster."""
    prefill_instances: int | None = None
    """Of these instances, the first so many only prefill, and the others only decode."""
    fabric_gb_per_s: float = 12.5
    """Of the link of each instance to the others, for KV that moves, GB/s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("instances", self.instances, 1)
        gb_per_s = self.fabric_gb_per_s
        require("fabric_gb_per_s", gb_per_s, 0 < gb_per_s < inf, "GB/s above 0")
        if self.placement is None and (self.instances > 1 or self.placement_settings):
            raise ConfigError(f"instances is {self.instances} without a placement; name one")
        pool = self.prefill_instances
        is_pool = pool is None or 1 <= pool < self.instances
        require("prefill_instances", pool, is_pool, "1 or more, and less than the instances")
        if self.placement is not None and self.clients is not None:
            raise ConfigError(
                f"clients is {self.clients} with a placement; a closed loop has one instance, so "
                "use rate_per_s"
            )
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

    def roles(self) -> list[Role] | None:
        """Return the roles of the instances."""
        if self.prefill_instances is None:
            return None
        num_decode = self.instances - self.prefill_instances
        first: Role = "prefill"
        others: Role = "decode"
        return [first] * self.prefill_instances + [others] * num_decode

    def loaded_placement(self) -> Placement | None:
        """Return a fresh placement; None for a single instance."""
        if self.placement is None:
            return None
        return load_placement(self.placement, **self.placement_settings)


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
    migrations: Sequence[Migration] = ()
    with Progress(1) as progress:
        progress.begin(config.policy)
        try:
            timeline, migrations = _simulate(config, requests, progress)
            progress.step(config.policy)
        except Interrupted as stopped:
            timeline, is_whole = stopped.timeline, False
    files = _write(config, timeline)
    summary = summarize(timeline)
    named: dict[str, Any] = {"policy": config.policy, "scores": config.scores}
    moved_s = statistic(np.array([move.downtime_s for move in migrations]))
    if config.placement is not None:
        named |= {"placement": config.placement, "instances": config.instances}
        named |= {"migration_downtime_s": asdict(moved_s)}
    if config.json:
        print(to_json({**named, **summary.to_dict()}))
    else:
        print(format_summary(config.policy, summary))
        if config.placement is not None:
            print(
                f"placement {config.placement} over {config.instances} instances: {moved_s.count} "
                f"migrations, downtime {moved_s.p50:.4f} s (p50), {moved_s.p99:.4f} s (p99)"
            )
        arrivals = config.arrivals_text(config.rate_per_s, requests)
        if config.clients is not None:
            arrivals = f"closed loop of {config.clients} clients"
        print(config.conditions(arrivals, len(requests)))
    if not is_whole:
        left_out = summary.num_unfinished
        print(f"interrupted: {left_out} requests are left out of E2E", file=sys.stderr)
        return INTERRUPTED
    config.log(f"simulate {config.policy}", summary.flat(), files)
    return 0


def _simulate(
    config: SimulateConfig, requests: Requests, progress: Progress
) -> tuple[Timeline, Sequence[Migration]]:
    placement, instance = config.loaded_placement(), config.instance()
    observers = progress_lines(progress, requests)
    if placement is None:
        timeline = simulate(
            requests,
            config.loaded_policy(),
            instance,
            kind=config.engine,
            clients=config.clients,
            observers=observers,
        )
        return timeline, ()
    run = simulate_cluster(
        requests,
        placement,
        config.loaded_policy,
        [instance] * config.instances,
        fabric=Fabric.of_model(
            config.profile.partition("@")[0], bytes_per_s=config.fabric_gb_per_s * 1e9
        ),
        roles=config.roles(),
        kind=config.engine,
        observers=lambda number: observers,
    )
    return run.timeline, run.migrations


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
        if isinstance(value, dict):
            _, *numbers = value.values()
            lines.append(f"{key:24}" + "".join(f"{number:10.4f}" for number in numbers))
    return "\n".join(lines)
