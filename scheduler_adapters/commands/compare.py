"""`compare`: policies and placements on the same requests, as a table, CSV and a report."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from itertools import product
from pathlib import Path
from typing import Any, Self

import pandas as pd

from lengthwise.command_line.options import common_options
from lengthwise.errors import SchedulingError, require
from lengthwise.progress import Progress
from lengthwise.report_page import ReportSection, save_table, write_report
from lengthwise.settings import settings
from lengthwise.strict_json import to_json
from scheduler_adapters.commands.capacity import SearchConfig, capacities, capacity_section
from scheduler_adapters.commands.experiment_settings import check_names, check_one_of
from scheduler_adapters.engines.score_order import ScoreOrder, past_lower_score_fraction
from scheduler_adapters.reporting import latency_tables as tables
from scheduler_adapters.reporting.figures import ecdf_figure, rate_figure
from scheduler_adapters.reporting.latency_tables import Outcome, text_of
from scheduler_adapters.simulator.observers import ProgressLine
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.qoe import reading_figures
from scheduler_adapters.timeline.timeline import write_timeline
from scheduler_adapters.workload.requests import Requests


@settings
class CompareConfig(SearchConfig):
    """Policies, placements and rates to compare."""

    policies: list[str] = field(default_factory=lambda: ["fcfs", "pars", "oracle"])
    """Names of policies, which `simulate --help` lists, or import paths."""
    rates_per_s: list[float] = field(default_factory=list)
    """Arrival rates to sweep; none: rate_per_s only."""
    placements: list[str] = field(default_factory=list)
    """Placements of a cluster, each with every policy; none: placement only."""
    placement_settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the placement, e.g. {"migration": "never"}; with placements by name."""
    slo: dict[str, float] = field(default_factory=dict)
    """Targets of `capacity`, e.g. {"ttft_s.p99": 1}, to search the load at which each policy meets
    them, with seeds, tolerance and by; none: no search."""
    out: Path | None = None
    """Folder for report.html, summary.csv, each figure beside its table, and one parquet file of
    requests per run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(self, ("rate_per_s", "rates_per_s"), ("placement", "placements"))
        searches_rate = bool(self.slo) and self.by == "rate"
        self.need_rate(bool(self.rates_per_s) or self.rate_per_s is not None or searches_rate)
        is_each_once = len(set(self.rates_per_s)) == len(self.rates_per_s)
        require("rates_per_s", self.rates_per_s, is_each_once, "each rate once")
        if self.placements:
            settings = self.placement_settings
            check_names("placements", "placement_settings", self.placements, settings)
        for own in self.by_placement().values():
            own.loaded_placement()

    @property
    def placement_names(self) -> list[str]:
        return self.placements or super().placement_names

    def by_placement(self) -> dict[str | None, Self]:
        """Return the cluster of each placement; under None the single instance."""
        if not self.placements:
            return {self.placement: self}
        own = self.placement_settings
        return {
            name: replace(self, placements=[], placement=name, placement_settings=own.get(name, {}))
            for name in self.placements
        }

    @property
    def plan(self) -> list[tuple[str, str | None, float | None]]:
        """The runs: policy, placement and rate."""
        rates: Sequence[float | None] = self.rates_per_s or [self.rate_per_s]
        placements: Sequence[str | None] = self.placement_names or [None]
        return [
            (policy, on, rate) for rate, on, policy in product(rates, placements, self.policies)
        ]

    def lead(self, requests: Requests) -> str:
        """Conditions of all runs."""
        arrivals = self.arrivals_text(self.rate_per_s, requests)
        if self.rates_per_s:
            rates = ", ".join(f"{rate:g}" for rate in self.rates_per_s)
            arrivals = f"{self.process} at {rates}/s"
        return self.conditions(arrivals, len(requests)) + "."


@common_options(
    *("trace", "lengths", "num_requests", "rate_per_s", "rates_per_s", "scores", "profile"),
    *("policies", "slo", "out"),
)
def run(config: CompareConfig) -> None:
    """Run several policies on the same requests and show them side by side.

    Examples:
      python -m scheduler_adapters compare --policies '[fcfs, pars, oracle]' --max-num-seqs 64
      python -m scheduler_adapters compare --policies '[sarathi, slai]' --rates-per-s '[2, 4]'
      python -m scheduler_adapters compare --rate-per-s 4 --slo '{"ttft_s.p90": 1}' --out compared
      python -m scheduler_adapters compare --instances 4 --placements '[round-robin, least-kv]'
      python -m scheduler_adapters compare --trace run/test.parquet --scores bundle:run/bundle \\
          --policies '[fcfs, small, pars, oracle]' \\
          --settings '{"small": {"policy": "pars", "scores": "bundle:run/small/bundle"}}'

    Ctrl-C, or the failure of a policy, ends the command; finished runs are written and shown. The
    exit code is then 130, or 2.
    """
    config, requests = config.loaded()
    outcomes, found = list[Outcome](), dict[str, list[float]]()
    stopped: KeyboardInterrupt | SchedulingError | None = None
    try:
        for outcome in outcomes_of(config, requests):
            outcomes.append(outcome)
            if config.out is not None:
                path = config.out / f"{outcome.name}.parquet"
                write_timeline(outcome.timeline, path, token_times=False)
        for placement, own in config.by_placement().items() if config.slo else ():
            for policy, value in capacities(own, requests):
                found.setdefault(tables.system_name(policy, placement), []).append(value)
    except (KeyboardInterrupt, SchedulingError) as error:
        if not outcomes:
            raise
        stopped = error  # raised again below: finished runs must be kept
    lead = config.lead(requests)
    if config.out is not None:
        rows = pd.DataFrame([outcome.row() for outcome in outcomes])
        save_table(rows, config.out / "summary.csv")
        sections = [*_sections(config, outcomes)]
        sections += [capacity_section(config, found, requests)] if found else []
        write_report(config.out, title="Policies compared", lead=lead, sections=sections)
    _show(config, outcomes, found, lead)
    if stopped is not None:
        plan = config.plan[len(outcomes) :]
        left_out = [tables.system_name(policy, on) + _rate_text(rate) for policy, on, rate in plan]
        left_out += ["the search for the capacity"] * bool(config.slo)
        print(f"left out {', '.join(left_out)}", file=sys.stderr)
        raise stopped


def outcomes_of(config: CompareConfig, requests: Requests) -> Iterator[Outcome]:
    """Run every policy under every placement at every rate, one after the other."""
    clusters = config.by_placement()
    arriving = {config.rate_per_s: requests}
    arriving |= {rate: config.at_rate(requests, rate) for rate in config.rates_per_s}
    if config.out is not None:
        config.out.mkdir(parents=True, exist_ok=True)
    with Progress(len(config.plan)) as progress:
        for policy, placement, rate_per_s in config.plan:
            name = tables.system_name(policy, placement) + _rate_text(rate_per_s)
            progress.begin(name)
            scored = config.scored_for(policy, arriving[rate_per_s])
            line = ProgressLine(progress, len(scored))
            orders = [ScoreOrder() for _ in range(config.instances)]
            observers = [[line, order] for order in orders]
            timeline, _ = clusters[placement].serve(
                scored,
                config.policy_maker(policy, scored),
                loop="python",  # compiled loops have no observers
                observers=observers.__getitem__,
            )
            progress.step(name)
            past = past_lower_score_fraction(orders)
            summary = summarize(timeline)
            yield Outcome(policy, rate_per_s, timeline, summary, placement, past)


def _rate_text(rate_per_s: float | None) -> str:
    return "" if rate_per_s is None else f" at {rate_per_s:g} requests/s"


def _show(
    config: CompareConfig, outcomes: Sequence[Outcome], found: dict[str, list[float]], lead: str
) -> None:
    if config.json:
        page = None if config.out is None else str(config.out / "report.html")
        capacity = {"capacity": found} if config.slo else {}
        runs = [outcome.row() | reading_figures(outcome.timeline) for outcome in outcomes]
        cluster = {"instances": config.instances} if config.placement_names else {}
        result = {"runs": runs, "scores": config.scores, **cluster, **capacity, "report": page}
        print(to_json(result))
    else:
        print(text_of(tables.run_table(outcomes).dropna(axis="columns", how="all")))
        print(tables.effect_text(outcomes))
        if found:
            print(f"\ncapacity, {config.found_unit}\n{text_of(tables.capacity_table(found))}")
        print(lead)


def _sections(config: CompareConfig, outcomes: Sequence[Outcome]) -> Iterator[ReportSection]:
    """Yield all runs, latency against several rates, then latencies at the highest one."""
    effect = tables.effect_text(outcomes).replace("\n", "\n\n")  # paragraphs
    yield ReportSection(heading="All runs", text=effect, table=tables.run_table(outcomes))
    count = len(outcomes[0].timeline.requests)
    rates = {outcome.rate_per_s for outcome in outcomes}
    if len(rates) > 1:
        by_rate = tables.rate_table(outcomes)
        yield ReportSection(
            heading="Latency against the arrival rate",
            figure=rate_figure(by_rate),
            caption="Median (solid) and 99th percentile (dashed). "
            f"{config.conditions(config.process, count)}.",
            drawn=("latency_by_rate", by_rate),
        )
    # Policies differ most at the highest rate.
    rate_per_s = max((rate for rate in rates if rate is not None), default=None)
    shown = [outcome for outcome in outcomes if outcome.rate_per_s == rate_per_s]
    arrivals = config.arrivals_text(rate_per_s, outcomes[0].timeline.requests)
    said = config.conditions(arrivals, count) + "."
    latencies = tables.latency_table(shown)
    yield ReportSection(
        heading="Latencies" + _rate_text(rate_per_s),
        figure=ecdf_figure(latencies, "seconds", log_x=True),
        caption="Share of requests (TTFT, E2E) and of gaps between tokens (TBT) at or below a "
        f"latency. {said}",
        drawn=("latencies", latencies),
    )
