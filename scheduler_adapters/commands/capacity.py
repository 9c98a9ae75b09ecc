"""`capacity`: the highest load at which a policy meets its latency targets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from scheduler_adapters.commands.running import run_requests
from scheduler_adapters.commands.setup import (
    Setup,
    check_folder,
    check_policies,
    load_named,
    policy_of,
)
from scheduler_adapters.progress import Progress
from scheduler_adapters.reporting.figures import capacity_figure
from scheduler_adapters.reporting.page import ReportTable, Section, write_report
from scheduler_adapters.reporting.tables import capacity_table
from scheduler_adapters.reporting.tracking import log_run
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.instance_config import check_memory
from scheduler_adapters.timeline.metrics import summarize
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import ORDER_STREAM
from scheduler_adapters.workload.requests import Requests
from scoring_service.command_line import INTERRUPTED
from scoring_service.errors import ConfigError
from scoring_service.strict_json import to_json

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Search(Setup):
    """What to search for."""

    slo: dict[str, float] = field(default_factory=lambda: {"ttft_s.p99": 1.0, "tpot_s.p99": 0.1})
    """Metric.statistic -> the most it may be, seconds; statistics are mean, p50, p90, p99."""
    by: Literal["rate", "concurrency"] = "rate"
    """rate: arrivals per second, all requests measured. concurrency: clients that send their next
    request when one is answered (closed loop); the first and the last requests of each, when not
    all of them have company, are not measured."""
    seeds: int = 3
    """Searches, each with other arrivals or, by concurrency, the requests in another order."""
    tolerance: float = 0.02
    """Relative width at which a search ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds < 1 or not 0 < self.tolerance < 1:
            raise ConfigError(
                f"seeds is {self.seeds} and tolerance {self.tolerance}; use 1 or more and (0, 1)"
            )
        for name, most in self.slo.items():
            metric, _, statistic = name.partition(".")
            if metric not in _METRICS or statistic not in ("mean", "p50", "p90", "p99"):
                raise ConfigError(
                    f"slo names {name!r}; use one of {', '.join(_METRICS)} with .mean, .p50, .p90 "
                    "or .p99"
                )
            if not most > 0:
                raise ConfigError(f"slo {name} is {most}; use seconds above 0")

    @property
    def unit(self) -> str:
        return "requests/s" if self.by == "rate" else "clients"

    def searched(self, num_requests: int) -> str:
        """The conditions of a search, for a caption."""
        arrivals = self.process if self.by == "rate" else "closed loop without think time"
        more = f" and {self.seeds - 1} more" if self.seeds > 1 else ""
        return f"{self.conditions(arrivals, num_requests)}{more}."


_METRICS: Final = (
    "ttft_s",
    "ttfat_s",
    "tbt_s",
    "tpot_s",
    "e2e_s",
    "queueing_s",
    "normalized_latency_s",
)


@dataclass(frozen=True, kw_only=True)
class CapacityConfig(Search):
    """Which policies, and which targets."""

    policies: list[str] = field(default_factory=lambda: ["fcfs", "pars"])
    """Names of policies, which `simulate --help` lists, or import paths."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What policies take, by name, e.g. {"pars": {"starve_after_s": null}}. A made-up name says
    whose settings they are: {"pars-patient": {"policy": "pars", "starve_after_s": 600}}."""
    out: Path | None = None
    """Folder for report.html and capacity.csv with its figure."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_rate(self.by == "rate")
        if self.rate_per_s is not None:
            raise ConfigError(
                f"rate_per_s is {self.rate_per_s}, but capacity searches the load; leave it out"
            )
        check_policies(self.policies, self.settings)
        check_folder(self.out)
        if not self.slo:
            raise ConfigError("slo is empty; name at least one target, such as ttft_s.p99")


def run(config: CapacityConfig) -> int:
    """Find the highest load at which all targets are met, by bisection, with its spread.

    Examples:
      python -m scheduler_adapters capacity --policies '[fcfs, pars]' --slo '{"e2e_s.p90": 20}'
      python -m scheduler_adapters capacity --by concurrency --slo '{"ttft_s.p99": 2}' --out found

    Load is that of one instance; the interval is 95% over the seeds (Student). Interrupted with
    Ctrl-C, the searches that ended are written and shown; exit code 130.
    """
    requests = config.load()
    config = replace(config, scores=config.score_source(requests))
    check_memory(requests, config.instance())
    found: dict[str, list[float]] = {}
    is_whole = True
    try:
        for policy, value in capacities(config.policies, config.settings, config, requests):
            found.setdefault(policy, []).append(value)
    except KeyboardInterrupt:
        is_whole = False
    lead = config.searched(len(requests))
    files = []
    if config.out is not None and found:
        title = "Load that meets the targets"
        sections = [capacity_section(config, found, requests)]
        files = write_report(config.out, title=title, lead=lead, sections=sections)
    _show(config, found, lead)
    if not is_whole:
        wanted, done = len(config.policies) * config.seeds, sum(map(len, found.values()))
        print(f"interrupted: {wanted - done} of {wanted} searches are left out", file=sys.stderr)
        return INTERRUPTED
    if files:
        log_run(
            config.mlruns_dir,
            f"capacity by {config.by}",
            params=config.as_params(),
            metrics={f"capacity.{name}": float(np.mean(values)) for name, values in found.items()},
            files=files,
        )
    return 0


def _show(config: CapacityConfig, found: dict[str, list[float]], lead: str) -> None:
    each = "rates_per_s" if config.by == "rate" else "clients"
    table = capacity_table(found)
    if config.json:
        rows = [
            {
                "policy": row.policy,
                "mean": row.mean,
                "interval": [row.low, row.high],
                each: found[str(row.policy)],
            }
            for row in table.itertuples()
        ]
        found_on = {"slo": config.slo, "by": config.by, "scores": config.scores}
        print(to_json({**found_on, "capacity": rows}))
        return
    for row in table.itertuples():
        print(f"{row.policy:20} {row.mean:8.3f} {config.unit}  [{row.low:.3f}, {row.high:.3f}]")
    print(lead)


def capacity_section(
    config: Search, found: Mapping[str, list[float]], requests: Requests
) -> Section:
    """Return the loads that were found as bars with their intervals."""
    table, label = capacity_table(found), f"capacity ({config.unit})"
    targets = ", ".join(f"{name} <= {most:g} s" for name, most in config.slo.items())
    return Section(
        heading="Capacity",
        text=f"The highest load at which {targets}, found by bisection.",
        table=ReportTable(
            columns=["policy", label, "95% low", "95% high", "searches"],
            rows=[list(row) for row in table.itertuples(index=False)],
        ),
        figure=capacity_figure(table, label),
        caption="Bars: mean over the seeds; whiskers: 95% interval. "
        + config.searched(len(requests)),
        drawn=("capacity", table),
    )


def capacities(
    policies: Sequence[str],
    settings: dict[str, dict[str, Any]],
    config: Search,
    loaded: Requests,
) -> Iterator[tuple[str, float]]:
    """Yield policies with their `capacity_of`, a seed each; a trace is not loaded again."""
    with Progress(len(policies) * config.seeds, is_partial_shown=False) as progress:
        for policy in policies:
            for seed in range(config.seed, config.seed + config.seeds):
                reseeded = replace(config, seed=seed)
                requests = loaded if config.trace else reseeded.load()
                value = capacity_of(policy, reseeded, requests, progress, settings)
                progress.step(policy)
                if not value:
                    log.warning("%s %s", policy, _why_none(requests, config.instance()))
                yield policy, value


def _why_none(requests: Requests, instance: Instance) -> str:
    if instance.cannot_hold(requests.prompt_tokens, requests.output_tokens).all():
        return f"serves nothing: not one request fits into {instance.kv_blocks:,} KV blocks"
    return "misses a target even with the least load tried"


def capacity_of(
    name: str,
    config: Search,
    requests: Requests,
    progress: Progress,
    settings: dict[str, dict[str, Any]],
) -> float:
    """Highest rate per second, or number of clients, for one seed; 0 where even little is much."""
    scored = config.scored(requests, by_oracle=policy_of(name, settings) == "oracle")
    run = partial(run_requests, instance=config.instance(), progress=progress, engine=config.engine)

    def is_met(load: float) -> bool:
        policy = load_named(name, settings)
        progress.begin(f"{name} with {load:.3g} {config.unit}")
        if config.by == "rate":
            return _is_met(config, run(config.at_rate(scored, load), policy))
        clients = int(load)
        order = np.random.default_rng((config.seed, ORDER_STREAM)).permutation(len(scored))
        timeline = run(scored.take(order), policy, clients=clients)
        row = np.arange(len(scored))
        return _is_met(config, timeline.take((row >= clients) & (row < len(scored) - clients)))

    if config.by == "rate":
        found = highest_rate(is_met, low=0.05, high=1.0, tolerance=config.tolerance, grows=True)
        if found == MOST_PER_S:
            log.warning("%s meets the targets at %g/s, where the search ends", name, found)
        return found
    most = len(scored) // _REQUESTS_PER_CLIENT
    if most < 2:
        raise ConfigError(
            f"num_requests is {len(scored)}; use at least {2 * _REQUESTS_PER_CLIENT} to search "
            "by concurrency"
        )
    found = highest_rate(
        is_met, low=1, high=2, tolerance=config.tolerance, grows=True, most=most, whole=True
    )
    if found == most:
        log.warning("%s meets the targets with %d clients; num_requests allows no more", name, most)
    return found


MOST_PER_S: Final = 10_000.0
"""Where a search by rate ends: all requests come at about the same time."""
_REQUESTS_PER_CLIENT: Final = 4
"""At least; the first and the last are not measured."""


def _is_met(config: Search, timeline: Timeline) -> bool:
    summary = summarize(timeline)
    return summary.num_unfinished == 0 and all(
        attrgetter(name)(summary) <= most for name, most in config.slo.items()
    )


def highest_rate(
    meets: Callable[[float], bool],
    *,
    low: float,
    high: float,
    tolerance: float,
    grows: bool = False,
    most: float = MOST_PER_S,
    whole: bool = False,
) -> float:
    """The highest load for which `meets` holds, by bisection between `low` and `high`.

    `tolerance` is relative. With `grows`, `high` is doubled until it fails, up to `most`. With
    `whole`, only whole numbers are tried. 0 where `low` fails, the end where that holds.
    """
    if not meets(low):
        return 0.0
    while grows and high < most and meets(high):
        low, high = high, min(2 * high, most)
    if (not grows or high == most) and meets(high):
        return high
    while high - low > max(tolerance * high, 1 if whole else 0):
        middle = (low + high) // 2 if whole else (low + high) / 2
        if meets(middle):
            low = middle
        else:
            high = middle
    return low
