"""`compare`: several policies on the same requests; table, CSV and a report that stands alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scheduler_adapters.command_line import run_command
from scheduler_adapters.experiments import report
from scheduler_adapters.experiments.metrics import Summary, statistic, summarize, token_gaps
from scheduler_adapters.experiments.progress import Progress
from scheduler_adapters.experiments.setup import (
    Setup,
    arrivals_s,
    load_requests,
    make_instance,
    with_scores,
)
from scheduler_adapters.experiments.simulate import json_ready
from scheduler_adapters.experiments.timeline import Timeline, write_timeline
from scheduler_adapters.experiments.workload import Requests
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.simulation import simulate
from scoring_service.errors import ConfigError, DataError

SHOWN = ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s")


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Setup):
    """Which policies to compare, and on what."""

    policies: list[str] = field(default_factory=lambda: ["fcfs", "pars", "oracle"])
    """Names of policies or import paths."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What policies take, by name, e.g. {"pars": {"starve_after_s": null}}."""
    rates_per_s: list[float] = field(default_factory=list)
    """Arrival rates to sweep; none: rate_per_s only."""
    out: Path | None = None
    """Folder for report.html, summary.csv and one parquet file of requests per run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.policies:
            raise ConfigError("policies is empty; name at least one")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run of the comparison."""

    policy: str
    rate_per_s: float | None
    timeline: Timeline
    summary: Summary


def run(config: CompareConfig) -> None:
    """Run several policies on the same requests and show them side by side.

    Examples:
      python -m scheduler_adapters compare --policies '[fcfs, pars, oracle]' --max_num_seqs 64
      python -m scheduler_adapters compare --policies '[sarathi, slai]' --rates_per_s '[2, 4]'

    Interrupted with Ctrl-C, what is finished is written and shown.
    """
    outcomes: list[Outcome] = []
    try:
        for outcome in outcomes_of(config):
            outcomes.append(outcome)
            if config.out is not None:
                _write_requests(config.out, outcome)
    except KeyboardInterrupt:
        if not outcomes:
            raise
    if config.out is not None:
        write_outcomes(config.out, config, outcomes)
    rows = [_row(outcome) for outcome in outcomes]
    if config.json:
        page = None if config.out is None else str(config.out / "report.html")
        print(json.dumps(json_ready({"runs": rows, "report": page})))
    else:
        print(_table_text(rows))


def outcomes_of(config: CompareConfig) -> Iterator[Outcome]:
    """Every policy at every rate, one after the other."""
    policies = {
        name: load_policy(name, **config.settings.get(name, {})) for name in config.policies
    }
    instance, requests = make_instance(config), load_requests(config)
    rates: Sequence[float | None] = config.rates_per_s or [config.rate_per_s]
    with Progress(len(rates) * len(policies)) as progress:
        for rate_per_s in rates:
            arriving = _at_rate(requests, config, rate_per_s)
            for name in policies:
                # A policy may remember how far its cycle is: each run has a fresh one.
                policy = load_policy(name, **config.settings.get(name, {}))
                timeline = simulate(with_scores(arriving, name, config), policy, instance)
                progress.step(f"{name} {_rate_text(rate_per_s)}")
                yield Outcome(
                    policy=name,
                    rate_per_s=rate_per_s,
                    timeline=timeline,
                    summary=summarize(timeline),
                )


def _at_rate(requests: Requests, config: Setup, rate_per_s: float | None) -> Requests:
    if rate_per_s is None or rate_per_s == config.rate_per_s:
        return requests
    return replace(requests, arrival_s=arrivals_s(config, len(requests), rate_per_s))


def _rate_text(rate_per_s: float | None) -> str:
    return "" if rate_per_s is None else f"at {rate_per_s:g} requests/s"


def _row(outcome: Outcome) -> dict[str, Any]:
    """A run as one flat record."""
    summary = outcome.summary
    row: dict[str, Any] = {
        "policy": outcome.policy,
        "rate_per_s": outcome.rate_per_s,
        "num_finished": summary.num_finished,
        "num_unfinished": summary.num_unfinished,
        "num_rejected": summary.num_rejected,
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
    "ttft_mean_s": "TTFT mean s",
    "ttft_p99_s": "TTFT p99 s",
    "tpot_mean_s": "TPOT mean s",
    "tbt_p99_s": "TBT p99 s",
    "e2e_mean_s": "E2E mean s",
    "e2e_p99_s": "E2E p99 s",
    "normalized_latency_mean_s": "E2E/token mean s",
    "normalized_latency_p90_s": "E2E/token p90 s",
    "num_preemptions": "preemptions",
}


def _table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    table = pd.DataFrame(rows)[list(_COLUMNS)].rename(columns=_COLUMNS)
    return str(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))


def _write_requests(folder: Path, outcome: Outcome) -> None:
    rate = "" if outcome.rate_per_s is None else f"_q{outcome.rate_per_s:g}"
    name = outcome.policy.replace(":", "_").replace("/", "_")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot be made: {error}", path=folder) from error
    write_timeline(outcome.timeline, folder / f"{name}{rate}.parquet", token_times=False)


def write_outcomes(folder: Path, config: CompareConfig, outcomes: Sequence[Outcome]) -> Path:
    """Write summary.csv and report.html; returns the report's path."""
    rows = [_row(outcome) for outcome in outcomes]
    pd.DataFrame(rows).to_csv(folder / "summary.csv", index=False)
    lead = (
        f"{config.num_requests} requests at most of {config.trace or 'the synthetic mix'}, "
        f"{config.profile}, {config.max_num_seqs} seats, budget {config.max_tokens} tokens, "
        f"scores: {config.scores}, seed {config.seed}."
    )
    table = report.Table(
        columns=list(_COLUMNS.values()), rows=[[row[c] for c in _COLUMNS] for row in rows]
    )
    sections = [report.Section(heading="All runs", table=table), *_figures(outcomes)]
    return report.write_html(
        folder / "report.html", title="Policies compared", lead=lead, sections=sections
    )


def _figures(outcomes: Sequence[Outcome]) -> Iterator[report.Section]:
    rates = sorted({outcome.rate_per_s for outcome in outcomes if outcome.rate_per_s is not None})
    if len(rates) > 1:
        for metric in ("ttft_s", "normalized_latency_s", "e2e_s"):
            yield _rate_curve(outcomes, metric)
    last = [outcome for outcome in outcomes if outcome.rate_per_s == outcomes[-1].rate_per_s]
    yield report.Section(
        heading="Latencies of all requests " + _rate_text(last[0].rate_per_s),
        figure=report.ecdf_figure(_panels(last), "s"),
        caption="Share of requests at or below a latency.",
    )
    yield report.Section(
        heading="Requests in the system",
        figure=report.curve_figure(
            {outcome.policy: _in_system(outcome.timeline) for outcome in last},
            xlabel="time (s)",
            ylabel="requests arrived and not finished",
        ),
    )


def _panels(outcomes: Sequence[Outcome]) -> dict[str, dict[str, np.ndarray]]:
    panels: dict[str, dict[str, np.ndarray]] = {"TTFT": {}, "E2E": {}}
    for outcome in outcomes:
        timeline = outcome.timeline
        finished = ~np.isnan(timeline.finished_s)
        arrival_s = timeline.requests.arrival_s[finished]
        panels["TTFT"][outcome.policy] = timeline.first_token_s[finished] - arrival_s
        panels["E2E"][outcome.policy] = timeline.finished_s[finished] - arrival_s
    return panels


def _rate_curve(outcomes: Sequence[Outcome], metric: str) -> report.Section:
    series: dict[str, tuple[list[float], list[float]]] = {}
    for outcome in outcomes:
        if outcome.rate_per_s is not None:
            rates, values = series.setdefault(outcome.policy, ([], []))
            rates.append(outcome.rate_per_s)
            values.append(getattr(outcome.summary, metric).mean)
    figure = report.curve_figure(series, xlabel="requests per second", ylabel=f"mean {metric}")
    return report.Section(heading=f"Mean {metric} against the arrival rate", figure=figure)


def _in_system(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """How many requests are there, at a hundred instants of the run."""
    finished_s = timeline.finished_s[~np.isnan(timeline.finished_s)]
    at_s = np.linspace(0, finished_s.max() if len(finished_s) else 1.0, 100)
    served = timeline.requests.arrival_s[~timeline.rejected]
    arrived = np.searchsorted(np.sort(served), at_s, "right")
    return at_s, arrived - np.searchsorted(np.sort(finished_s), at_s, "right")


def main(arguments: Sequence[str]) -> int:
    """The command line. Returns the exit code."""
    return run_command("compare", CompareConfig, run, arguments)
