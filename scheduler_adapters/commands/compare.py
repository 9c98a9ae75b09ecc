"""`compare`: several policies on the same requests; table, CSV and a report that stands alone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scheduler_adapters.command_line import INTERRUPTED, run_command
from scheduler_adapters.commands.capacity import (
    Search,
    capacities,
    capacity_section,
    capacity_table,
)
from scheduler_adapters.commands.running import Load, run_with_load
from scheduler_adapters.commands.setup import (
    arrivals_s,
    arrivals_text,
    as_params,
    check_folder,
    check_memory,
    check_policies,
    conditions,
    load_requests,
    make_instance,
    make_policy,
    process_text,
    score_source,
    with_scores,
)
from scheduler_adapters.commands.simulate import flat_metrics, json_ready
from scheduler_adapters.progress import Progress
from scheduler_adapters.reporting import report
from scheduler_adapters.reporting.tracking import log_run
from scheduler_adapters.timeline.metrics import Summary, statistic, summarize, token_gaps
from scheduler_adapters.timeline.timeline import Timeline, write_timeline
from scheduler_adapters.workload.requests import Requests
from scoring_service.errors import ConfigError, SchedulingError

SHOWN = ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s")


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Search):
    """Which policies to compare, and on what."""

    policies: list[str] = field(default_factory=lambda: ["fcfs", "pars", "oracle"])
    """Names of policies, which `simulate --help` lists, or import paths."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What policies take, by name, e.g. {"pars": {"starve_after_s": null}}. A made-up name says
    whose settings they are: {"pars-patient": {"policy": "pars", "starve_after_s": 600}}."""
    rates_per_s: list[float] = field(default_factory=list)
    """Arrival rates to sweep; none: rate_per_s only."""
    slo: dict[str, float] = field(default_factory=dict)
    """Targets, as metric.statistic -> seconds, e.g. {"ttft_s.p99": 1}: adds the load at which each
    policy meets them, with seeds, tolerance and by as in `capacity`; none: no such search."""
    out: Path | None = None
    """Folder for report.html, summary.csv, each figure beside its table, and one parquet file of
    requests per run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        searches_rate = bool(self.slo) and self.by == "rate"
        self.need_rate(bool(self.rates_per_s) or self.rate_per_s is not None or searches_rate)
        if self.rates_per_s and self.rate_per_s is not None:
            raise ConfigError(
                f"rate_per_s is {self.rate_per_s} and rates_per_s {self.rates_per_s}; use one of "
                "them"
            )
        if len(set(self.rates_per_s)) < len(self.rates_per_s):
            raise ConfigError(f"rates_per_s is {self.rates_per_s}; name each rate once")
        check_policies(self.policies, self.settings)
        check_folder(self.out)

    @property
    def plan(self) -> list[tuple[str, float | None]]:
        """The runs: policies at every rate."""
        rates: Sequence[float | None] = self.rates_per_s or [self.rate_per_s]
        return [(policy, rate_per_s) for rate_per_s in rates for policy in self.policies]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run of the comparison."""

    policy: str
    rate_per_s: float | None
    timeline: Timeline
    load: Load
    summary: Summary

    @property
    def name(self) -> str:
        """What its files are called."""
        rate = "" if self.rate_per_s is None else f"_q{self.rate_per_s:g}"
        return re.sub(r"[^\w.-]", "_", self.policy) + rate


def run(config: CompareConfig) -> int:
    """Run several policies on the same requests and show them side by side.

    Examples:
      python -m scheduler_adapters compare --policies '[fcfs, pars, oracle]' --max_num_seqs 64
      python -m scheduler_adapters compare --policies '[sarathi, slai]' --rates_per_s '[2, 4]'
      python -m scheduler_adapters compare --rate_per_s 4 --slo '{"ttft_s.p90": 1}' --out compared

    Interrupted with Ctrl-C, or stopped by a policy that fails, what is finished is written and
    shown; exit code 130, or 2.
    """
    requests = load_requests(config)
    config = replace(config, scores=score_source(config, requests))
    check_memory(requests, make_instance(config))
    outcomes: list[Outcome] = []
    found: dict[str, list[float]] = {}
    is_whole, failure = True, None
    try:
        for outcome in outcomes_of(config, requests):
            outcomes.append(outcome)
            if config.out is not None:
                path = config.out / f"{outcome.name}.parquet"
                write_timeline(outcome.timeline, path, token_times=False)
        if config.slo:
            for policy, value in capacities(config.policies, config.settings, config, requests):
                found.setdefault(policy, []).append(value)
    except KeyboardInterrupt:
        is_whole = False
    except SchedulingError as error:
        if not outcomes:
            raise
        failure = error  # the policies before it ran for nothing otherwise
    files = []
    if config.out is not None and outcomes:
        files = write_outcomes(config.out, config, outcomes, found)
    _show(config, requests, outcomes, found)
    if not is_whole:
        _say_left_out("interrupted", config, outcomes)
        return INTERRUPTED
    if failure is not None:
        _say_left_out("stopped", config, outcomes)
        raise failure
    if files:
        log_run(
            config.mlruns_dir,
            f"compare {', '.join(config.policies)}",
            params=as_params(config),
            metrics={
                f"{outcome.name}.{name}": number
                for outcome in outcomes
                for name, number in flat_metrics(outcome.summary).items()
            },
            files=files,
        )
    return 0


def _show(
    config: CompareConfig,
    requests: Requests,
    outcomes: Sequence[Outcome],
    found: Mapping[str, list[float]],
) -> None:
    rows = [_row(outcome) for outcome in outcomes]
    if config.json:
        page = None if config.out is None or not rows else str(config.out / "report.html")
        capacity = {"capacity": found} if config.slo else {}
        result = {"runs": rows, "scores": config.scores, **capacity, "report": page}
        print(json.dumps(json_ready(result)))
    elif rows:
        print(_table_text(pd.DataFrame(rows)[list(_COLUMNS)].rename(columns=_COLUMNS)))
        if found:
            print(f"\ncapacity, {config.unit}\n{_table_text(capacity_table(found))}")
        print(_lead(config, requests))


def _table_text(table: pd.DataFrame) -> str:
    return str(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))


def _say_left_out(why: str, config: CompareConfig, outcomes: Sequence[Outcome]) -> None:
    left_out = [f"{name}{_rate_text(rate)}" for name, rate in config.plan[len(outcomes) :]]
    left_out += ["the search for the capacity"] * bool(config.slo)
    print(f"{why}: left out {', '.join(left_out)}", file=sys.stderr)


def outcomes_of(config: CompareConfig, requests: Requests) -> Iterator[Outcome]:
    """Every policy at every rate, one after the other."""
    instance = make_instance(config)
    arriving = {rate: _at_rate(requests, config, rate) for _, rate in config.plan}
    if config.out is not None:
        _make_folder(config.out)
    with Progress(len(config.plan)) as progress:
        for name, rate_per_s in config.plan:
            progress.begin(name + _rate_text(rate_per_s))
            timeline, load = run_with_load(
                with_scores(arriving[rate_per_s], name, config, config.settings),
                make_policy(name, config.settings),
                instance,
                progress,
                engine=config.engine,
            )
            progress.step(name + _rate_text(rate_per_s))
            yield Outcome(
                policy=name,
                rate_per_s=rate_per_s,
                timeline=timeline,
                load=load,
                summary=summarize(timeline),
            )


def _at_rate(requests: Requests, config: Search, rate_per_s: float | None) -> Requests:
    if rate_per_s is None or rate_per_s == config.rate_per_s:
        return requests
    return replace(requests, arrival_s=arrivals_s(config, len(requests), rate_per_s))


def _rate_text(rate_per_s: float | None) -> str:
    return "" if rate_per_s is None else f" at {rate_per_s:g} requests/s"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out {folder} cannot be made ({error}); use another place") from error


def _row(outcome: Outcome) -> dict[str, Any]:
    """A run as one flat record."""
    summary = outcome.summary
    row: dict[str, Any] = {
        "policy": outcome.policy,
        "rate_per_s": outcome.rate_per_s,
        "num_finished": summary.num_finished,
        "num_unfinished": summary.num_unfinished,
        "num_rejected": summary.num_rejected,
        "num_unscored": summary.num_unscored,
        "num_preemptions": summary.num_preemptions,
        "output_tokens_per_s": summary.output_tokens_per_s,
    }
    for metric in (*SHOWN, "tbt_s", "queueing_s"):
        for name in ("mean", "p50", "p90", "p99"):
            row[f"{metric.removesuffix('_s')}_{name}_s"] = getattr(getattr(summary, metric), name)
    return row | _by_class(outcome.timeline)


def _by_class(timeline: Timeline) -> dict[str, float]:
    """P99 of the time between tokens of each user class, where there are several."""
    classes = np.unique(timeline.requests.user_class)
    if len(classes) < 2:
        return {}
    return {
        f"tbt_p99_s_{name}": statistic(
            *token_gaps(timeline.take(timeline.requests.user_class == name))
        ).p99
        for name in classes
    }


_COLUMNS = {
    "policy": "policy",
    "rate_per_s": "req/s",
    "ttft_p50_s": "TTFT p50 s",
    "ttft_p99_s": "TTFT p99 s",
    "tbt_p99_s": "TBT p99 s",
    "tpot_mean_s": "TPOT mean s",
    "e2e_mean_s": "E2E mean s",
    "e2e_p99_s": "E2E p99 s",
    "normalized_latency_mean_s": "E2E/token mean s",
    "normalized_latency_p90_s": "E2E/token p90 s",
    "num_preemptions": "preemptions",
}


def write_outcomes(
    folder: Path,
    config: CompareConfig,
    outcomes: Sequence[Outcome],
    found: Mapping[str, list[float]],
) -> list[Path]:
    """Write summary.csv, every figure beside its table, and report.html; returns the files."""
    rows = pd.DataFrame([_row(outcome) for outcome in outcomes])
    files = [report.save_table(rows, folder / "summary.csv")]
    table = report.Table(columns=list(_COLUMNS.values()), rows=rows[list(_COLUMNS)].values.tolist())
    sections = [report.Section(heading="All runs", table=table)]
    for name, section, data in _figures(config, outcomes):
        assert section.figure is not None
        files.append(report.save_table(data, folder / f"{name}.csv"))
        files.append(report.save_figure(section.figure, folder / f"{name}.svg"))
        sections.append(section)
    if found:
        section, more = capacity_section(
            config, folder, capacity_table(found), len(outcomes[0].timeline.requests)
        )
        sections.append(section)
        files += more
    page = report.write_html(
        folder / "report.html",
        title="Policies compared",
        lead=_lead(config, outcomes[0].timeline.requests),
        sections=sections,
    )
    return [page, *files]


def _lead(config: CompareConfig, requests: Requests) -> str:
    arrivals = arrivals_text(config, config.rate_per_s, requests)
    if config.rates_per_s:
        rates = ", ".join(f"{rate:g}" for rate in config.rates_per_s)
        arrivals = f"{process_text(config)} at {rates}/s"
    return conditions(config, arrivals, len(requests)) + "."


def _figures(
    config: CompareConfig, outcomes: Sequence[Outcome]
) -> Iterator[tuple[str, report.Section, pd.DataFrame]]:
    """Name, section with its figure, and the table it drew."""
    requests = outcomes[0].timeline.requests
    rates = {outcome.rate_per_s for outcome in outcomes}
    if len(rates) > 1:
        table = _rate_table(outcomes)
        yield (
            "latency_by_rate",
            report.Section(
                heading="Latency against the arrival rate",
                figure=report.rate_figure(table),
                caption="Median (solid) and 99th percentile (dashed). "
                f"{conditions(config, process_text(config), len(requests))}.",
            ),
            table,
        )
    # Of the rates the highest tells the policies apart.
    rate_per_s = max((rate for rate in rates if rate is not None), default=None)
    shown = [outcome for outcome in outcomes if outcome.rate_per_s == rate_per_s]
    said = conditions(config, arrivals_text(config, rate_per_s, requests), len(requests)) + "."
    table = report.ecdf_table(_panels(shown))
    yield (
        "latencies",
        report.Section(
            heading="Latencies" + _rate_text(rate_per_s),
            figure=report.ecdf_figure(table, "seconds", log_x=True),
            caption="Share of requests (TTFT, E2E) and of gaps between tokens (TBT) at or below a "
            f"latency. {said}",
        ),
        table,
    )
    table = _load_table(shown, config)
    yield (
        "load",
        report.Section(
            heading="KV memory and queue over time" + _rate_text(rate_per_s),
            figure=report.load_figure(table),
            caption=f"Means over {_INSTANTS} intervals of virtual time. {said}",
        ),
        table,
    )


def _panels(outcomes: Sequence[Outcome]) -> dict[str, dict[str, report.Weighted]]:
    panels: dict[str, dict[str, report.Weighted]] = {"TTFT": {}, "TBT": {}, "E2E": {}}
    for outcome in outcomes:
        timeline = outcome.timeline.take(~outcome.timeline.rejected)
        arrival_s = timeline.requests.arrival_s
        panels["TTFT"][outcome.policy] = timeline.first_token_s - arrival_s
        panels["TBT"][outcome.policy] = token_gaps(timeline)
        panels["E2E"][outcome.policy] = timeline.finished_s - arrival_s
    return panels


def _rate_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    metrics = {"TTFT": "ttft_s", "TBT": "tbt_s", "E2E / output tokens": "normalized_latency_s"}
    rows = [
        (label, outcome.policy, outcome.rate_per_s, values.p50, values.p99)
        for label, name in metrics.items()
        for outcome in outcomes
        for values in [getattr(outcome.summary, name)]
    ]
    return pd.DataFrame(rows, columns=["metric", "policy", "rate_per_s", "p50", "p99"])


_INSTANTS = 300


def _load_table(outcomes: Sequence[Outcome], config: CompareConfig) -> pd.DataFrame:
    """The load of each run in equal intervals, up to the end of the longest run."""
    end_s = max(float(outcome.load.end_s[-1]) for outcome in outcomes if len(outcome.load.end_s))
    edges_s = np.linspace(0, end_s, _INSTANTS + 1)
    kv_blocks = make_instance(config).kv_blocks
    return pd.concat(
        pd.DataFrame(
            {
                "policy": outcome.policy,
                "at_s": (edges_s[1:] + edges_s[:-1]) / 2,
                "kv_usage_fraction": load.mean(load.used_blocks, edges_s) / kv_blocks,
                "num_resident": load.mean(load.num_resident, edges_s),
                "num_waiting": load.mean(load.num_waiting, edges_s),
            }
        )
        for outcome in outcomes
        for load in [outcome.load]
    )


def main(arguments: Sequence[str]) -> int:
    """The command line. Returns the exit code."""
    return run_command("compare", CompareConfig, run, arguments)
