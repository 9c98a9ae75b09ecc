"""`capacity`: the highest load at which policies meet their latency targets."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np

from scheduler_adapters.commands.search import SearchConfig, capacities, capacity_section
from scheduler_adapters.reporting.page import write_report
from scheduler_adapters.reporting.tables import capacity_table
from scheduler_adapters.reporting.tracking import log_run
from scheduler_adapters.simulator.instance_config import check_memory
from scoring_service.command_line import INTERRUPTED
from scoring_service.errors import ConfigError
from scoring_service.strict_json import to_json


@dataclass(frozen=True, kw_only=True)
class CapacityConfig(SearchConfig):
    """Which policies, and which targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_rate(self.by == "rate")
        if self.rate_per_s is not None:
            raise ConfigError(
                f"rate_per_s is {self.rate_per_s}, but capacity searches the load; leave it out"
            )
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
        for policy, value in capacities(config, requests):
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
