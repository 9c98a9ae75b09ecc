"""`capacity`: the search for the highest load at which a policy meets its latency targets."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np

from lengthwise.command_line.options import common_options
from lengthwise.errors import ConfigError, require
from lengthwise.progress import Progress
from lengthwise.report_page import ReportSection, write_report
from lengthwise.settings import Count, Range, settings
from lengthwise.strict_json import to_json
from scheduler_adapters.commands import experiment_settings as setup
from scheduler_adapters.commands.experiment_settings import load_named, policy_of
from scheduler_adapters.policy import Policy
from scheduler_adapters.reporting.figures import bar_figure
from scheduler_adapters.reporting.latency_tables import capacity_table, text_of
from scheduler_adapters.simulator.load_search import MOST_PER_S, highest_load
from scheduler_adapters.simulator.observers import ProgressLine
from scheduler_adapters.timeline.targets import check_targets, is_met, target_parts, targets_text
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import ORDER_STREAM
from scheduler_adapters.workload.requests import Requests
from scheduler_adapters.workload.score_sources import with_lengths

log = logging.getLogger(__name__)

_REQUESTS_PER_CLIENT: Final = 4
"""Least number; the first and the last are not measured."""


@settings
class SearchConfig(setup.Setup):
    """Policies, latency targets, and the search for the highest load within the targets."""

    policies: list[str] = field(default_factory=lambda: ["fcfs", "pars"])
    """Names of policies, which `simulate --help` lists, or import paths."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of policies, by name, e.g. {"pars": {"starve_after_s": null}}. A name may be
    invented: {"pars-patient": {"policy": "pars", "starve_after_s": 600}}. With "scores" a policy
    has a source of its own: {"small": {"policy": "pars", "scores": "bundle:small/bundle"}}."""
    slo: dict[str, float] = field(default_factory=lambda: {"ttft_s.p99": 1.0, "tpot_s.p99": 0.1})
    """Targets: metric.statistic -> limit in seconds; statistics are mean, p50, p90, p99. Or
    qoe_violations -> limit of the share of requests with a QoE below .95. Of one user class:
    {"tbt_s.p99.paying": 0.1}."""
    by: Literal["rate", "concurrency"] = "rate"
    """rate: arrivals per second, all requests measured. concurrency: clients that send their next
    request after an answer (closed loop); only requests with all clients active are measured."""
    seeds: Count = 3
    """Number of searches, each with other arrivals or, by concurrency, another order."""
    tolerance: Annotated[float, Range(above=0, below=1)] = 0.02
    """Relative width of a search's last interval."""
    out: Path | None = None
    """Folder for report.html and each figure beside its table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_targets(self.slo)
        require("policies", "empty", bool(self.policies), "one name or more")
        setup.check_names("policies", "settings", self.policies, self.settings)
        for name in self.policies:
            load_named(name, self.settings)  # refuses settings that would fail after the first runs
        setup.check_folder(self.out)
        for source in self._own_scores.values():
            self._with_source(source).check_bundle()  # refuses an unknown source, too

    @property
    def _own_scores(self) -> dict[str, str]:
        return {name: str(own["scores"]) for name, own in self.settings.items() if "scores" in own}

    def _with_source(self, scores: str) -> Self:
        return replace(self, policies=["fcfs"], settings={}, scores=scores)

    def loaded(self) -> tuple[Self, Requests]:
        config, requests = super().loaded()
        config.check_classes(requests)
        return config, requests

    def check_classes(self, requests: Requests) -> None:
        """Refuse targets of user classes without requests."""
        known = [name for name in np.unique(requests.user_class).tolist() if name]
        for name in self.slo:
            user_class = target_parts(name)[1]
            if user_class and user_class not in known:
                use = f"use {' or '.join(known)}" if known else "add --classes"
                raise ConfigError(
                    f"slo names {name!r}, and none of the {len(requests)} requests of seed "
                    f"{self.seed} is of class {user_class!r}; {use}"
                )

    @property
    def unit(self) -> str:
        return "requests/s" if self.by == "rate" else "clients"

    @property
    def found_unit(self) -> str:
        """Unit of the result, which is the load of one instance."""
        return self.unit + " of an instance" * bool(self.placement_names)

    def scored_for(self, policy: str, requests: Requests) -> Requests:
        """Return the requests with the scores for a policy; those of the oracle are lengths."""
        scored = self.scored(requests, by_oracle=policy_of(policy, self.settings) == "oracle")
        if (source := self._own_scores.get(policy)) is not None:
            own = self._with_source(source)
            scored = own.scored(requests.with_scores(own.load().score))
        return with_lengths(scored, load_named(policy, self.settings))

    def policy_maker(self, name: str, requests: Requests) -> Callable[[], Policy]:
        """Return the maker of a policy, with shares between the clients of the requests."""
        return partial(load_named, name, self.settings, requests.clients)

    def conditions(self, arrivals: str, num_requests: int) -> str:
        cluster = f"{self.cluster_text}; " if self.cluster_text else ""
        own = "".join(f"; scores of {name}: {text}" for name, text in self._own_scores.items())
        return cluster + super().conditions(arrivals, num_requests) + own

    def searched(self, num_requests: int) -> str:
        """Conditions of a search, for a caption."""
        arrivals = self.process if self.by == "rate" else "closed loop without think time"
        more = f" and {self.seeds - 1} more" if self.seeds > 1 else ""
        return f"{self.conditions(arrivals, num_requests)}{more}."


@settings
class CapacityConfig(SearchConfig):
    """Policies, targets, and one instance or a cluster."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_rate(self.by == "rate")
        rate = self.rate_per_s
        require("rate_per_s", rate, rate is None, "none: capacity searches the load")
        require("slo", "empty", bool(self.slo), "at least one target, such as ttft_s.p99")


@common_options(
    *("trace", "lengths", "num_requests", "scores", "profile", "policies", "slo", "by"),
    *("out", "json"),
)
def run(config: CapacityConfig) -> None:
    """Find the highest load at which all targets are met, by bisection, with its spread.

    Examples:
      python -m scheduler_adapters capacity --policies '[fcfs, pars]' --slo '{"e2e_s.p90": 20}'
      python -m scheduler_adapters capacity --by concurrency --slo '{"ttft_s.p99": 2}' --out found
      python -m scheduler_adapters capacity --placement distserve --instances 8 \\
          --prefill-instances 3

    The load is that of one instance; in a cluster, the total divided by the instances. The interval
    is 95% over the seeds (Student). Ctrl-C ends the command; finished searches are written and
    shown, with exit code 130.
    """
    config.loaded_placement()  # refuses wrong settings before anything is read
    config, requests = config.loaded()
    found: dict[str, list[float]] = {}
    with suppress(KeyboardInterrupt):
        for policy, value in capacities(config, requests):
            found.setdefault(policy, []).append(value)
    wanted, done = len(config.policies) * config.seeds, sum(map(len, found.values()))
    lead = config.searched(len(requests))
    if config.out is not None and done:
        sections = [capacity_section(config, found, requests)]
        title = "Load that meets the targets"
        write_report(config.out, title=title, lead=lead, sections=sections)
    _show(config, found, lead)
    if done < wanted:
        print(f"{wanted - done} of {wanted} searches are left out", file=sys.stderr)
        raise KeyboardInterrupt


def _show(config: CapacityConfig, found: dict[str, list[float]], lead: str) -> None:
    each = "rates_per_s" if config.by == "rate" else "clients"
    table = capacity_table(found)
    if not config.json:
        print(f"capacity, {config.found_unit}\n{text_of(table)}\n{lead}")
        return
    rows = [
        {"policy": policy, "mean": mean, "interval": [low, high], each: found[policy]}
        for policy, mean, low, high, _ in table.itertuples(index=False)
    ]
    shown = {"slo": config.slo, "by": config.by, "scores": config.scores}
    print(to_json({**shown, "capacity": rows}))


def _seeded(config: SearchConfig, loaded: Requests) -> Iterator[tuple[SearchConfig, Requests]]:
    """Yield the settings and requests of each seed; a trace is not loaded again."""
    for seed in range(config.seed, config.seed + config.seeds):
        reseeded = replace(config, seed=seed)
        requests = loaded if config.trace else reseeded.load()
        reseeded.check_classes(requests)
        yield reseeded, requests


def capacities(config: SearchConfig, loaded: Requests) -> Iterator[tuple[str, float]]:
    """Yield each policy with its `capacity_of`, once per seed."""
    with Progress(len(config.policies) * config.seeds, is_partial_shown=False) as progress:
        for policy in config.policies:
            for reseeded, requests in _seeded(config, loaded):
                value = capacity_of(policy, reseeded, requests, progress)
                progress.step(policy)
                if not value:
                    instance = config.instance()
                    reason = "misses a target even with the least load tried"
                    if instance.cannot_hold(requests.prompt_tokens, requests.output_tokens).all():
                        blocks = f"{instance.kv_blocks:,} KV blocks"
                        reason = f"serves nothing: not one request fits into {blocks}"
                    log.warning("%s %s", policy, reason)
                yield policy, value


def capacity_of(name: str, config: SearchConfig, requests: Requests, progress: Progress) -> float:
    """Return the highest rate per second, or number of clients, for one seed; 0 for none at all."""
    scored = config.scored_for(name, requests)
    row, is_by_rate = np.arange(len(scored)), config.by == "rate"
    order = np.random.default_rng((config.seed, ORDER_STREAM)).permutation(len(scored))
    make = config.policy_maker(name, scored)

    def run(arriving: Requests, clients: int | None = None) -> Timeline:
        shown = [ProgressLine(progress, len(arriving))]
        return config.serve(arriving, make, clients=clients, observers=lambda number: shown)[0]

    def meets(load: float) -> bool:
        progress.begin(f"{name} with {load:.3g} {config.unit}")
        if is_by_rate:
            return is_met(config.slo, run(config.at_rate(scored, load)))
        clients = int(load)
        timeline = run(scored.take(order), clients)
        return is_met(config.slo, timeline.take((row >= clients) & (row < len(scored) - clients)))

    search = partial(highest_load, meets, tolerance=config.tolerance, grows=True)
    if is_by_rate:
        found, most, limit = search(low=0.05, high=1.0), MOST_PER_S, "the search ends there"
    else:
        most, limit = len(scored) // _REQUESTS_PER_CLIENT, "num_requests allows no more"
        least = f"at least {2 * _REQUESTS_PER_CLIENT} to search by concurrency"
        require("num_requests", len(scored), most >= 2, least)
        found = search(low=1, high=2, most=most, whole=True)
    if found == most:
        log.warning("%s meets the targets with %g %s; %s", name, most, config.unit, limit)
    return found / config.instances


def capacity_section(
    config: SearchConfig, found: Mapping[str, list[float]], requests: Requests
) -> ReportSection:
    """Return the loads, as a table and as bars with intervals."""
    table, label = capacity_table(found), f"capacity ({config.found_unit})"
    return ReportSection(
        heading="Capacity",
        text=f"The highest load at which {targets_text(config.slo)}, found by bisection.",
        table=table.rename(columns={"mean": label, "low": "95% low", "high": "95% high"}),
        figure=bar_figure(table, label),
        caption="Bars: mean over the seeds; whiskers: 95% interval. "
        + config.searched(len(requests)),
        drawn=("capacity", table),
    )
