"""The figures of the Phasor report: instances over time, fragmentation, capacity, SLOs."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from scheduler_adapters.papers.phasor_experiment import (
    ABLATION_RATES,
    BASELINES,
    BURSTS,
    PRODUCTION,
    RATES,
    SPLITS,
    PhasorExperiment,
    ablation_table,
    burst_label,
    fragment_shares,
    sensitivity_table,
)
from scheduler_adapters.papers.phasor_runs import ABLATIONS, Sample
from scheduler_adapters.reporting.figures import capacity_figure, instances_figure, series_figure
from scheduler_adapters.reporting.latency_tables import capacity_table, series_table
from scheduler_adapters.reporting.page import ReportTable, Section
from scheduler_adapters.simulator.cluster import ClusterRun

_NAMES = (*BASELINES, "Phasor")
_SHOCK = "BurstGPT lengths, Poisson arrivals at 5 req/s, and 25 req/s from 90 s to 120 s; seed 0."


def report_sections(experiment: PhasorExperiment) -> list[Section]:
    """Return the sections behind the table of figures."""
    return [
        *(_instances(experiment, name) for name in ("Phasor", "Splitwise")),
        _fragmentation(experiment),
        _capacity(experiment),
        _attainment(experiment),
        *_tables(experiment),
    ]


def _instances(experiment: PhasorExperiment, name: str) -> Section:
    run, looked_at = experiment.shock(name, 0)
    spans, moves = role_spans(looked_at.samples), moves_of(run)
    return Section(
        heading=f"Instances under {name}",
        figure=instances_figure(spans, moves),
        caption="Bars: roles of the instances, looked at twice a second. Lines: requests that "
        f"moved, from source to destination. {_SHOCK}",
        drawn=(f"instances_{name.lower()}", spans),
    )


def role_spans(samples: list[Sample]) -> pd.DataFrame:
    """Return for how long instances had their roles: instance, role, start_s, end_s."""
    rows = []
    for number in sorted({one.instance for one in samples}):
        own = [one for one in samples if one.instance == number]
        changes = [i for i, one in enumerate(own) if not i or one.role != own[i - 1].role]
        for first, last in pairwise([*changes, len(own) - 1]):
            rows.append((number, own[first].role, own[first].at_s, own[last].at_s))
    return pd.DataFrame(rows, columns=["instance", "role", "start_s", "end_s"])


def moves_of(run: ClusterRun) -> pd.DataFrame:
    """Return source, destination, end_s and kind of every request that moved."""
    kinds = ("hand-over after prefill", "live migration")
    rows = [
        (one.source, one.destination, one.end_s, kinds[one.stages > 1]) for one in run.migrations
    ]
    return pd.DataFrame(rows, columns=["source", "destination", "end_s", "kind"])


def _fragmentation(experiment: PhasorExperiment) -> Section:
    rows = []
    for burst in BURSTS:
        panel = burst_label(burst)
        for name in _NAMES:
            shares = fragment_shares(experiment, name, burst, 0)
            rows += [(panel, name, 0.5 * i, 100 * share) for i, share in enumerate(shares)]
    table = series_table(rows)
    return Section(
        heading="Fragmentation over time",
        figure=series_figure(table, "time (s)", "unusable KV memory (%)"),
        caption="Free blocks of decode instances that are left over when as many such bursts as "
        "fit are taken in; or, if each request had one run of blocks, those beside the longest "
        f"free run. {_SHOCK}",
        drawn=("fragmentation", table),
    )


def _capacity(experiment: PhasorExperiment) -> Section:
    found = {
        f"{name}, {workload.name}": [
            experiment.capacity(experiment.system(name, workload), workload, seed)
            for seed in experiment.search_seeds(workload)
        ]
        for workload in ABLATION_RATES
        for name in (*_NAMES, *(one.name for one in ABLATIONS))
    }
    table, label = capacity_table(found), "capacity (clients per GPU)"
    return Section(
        heading="Capacity within the SLO",
        figure=capacity_figure(table, label),
        caption="Most clients in a closed loop without think time, with P99 of TTFT and of TPOT "
        "within the targets; 95% interval over three seeds (one for S-L).",
        drawn=("capacity", table),
    )


def _attainment(experiment: PhasorExperiment) -> Section:
    rows = [
        (workload.name, name, rate, float(share))
        for workload, rates in RATES.items()
        for name in _NAMES
        for rate, share in zip(
            rates, experiment.values(name, workload, rates, "attainment").mean(axis=0), strict=True
        )
    ]
    table = series_table(rows)
    return Section(
        heading="Requests that meet both targets",
        figure=series_figure(table, "requests/s", "share of requests"),
        caption="Mean over the seeds.",
        drawn=("attainment", table),
    )


def _tables(experiment: PhasorExperiment) -> Iterator[Section]:
    ablations = ablation_table(experiment)
    columns = list(next(iter(ablations.values())))
    yield Section(
        heading="Ablations",
        text="TTFT P99 at 8 (L-S), 20 (S-L) and 40 (BurstGPT) requests/s, and capacity; "
        "Phasor = 1.",
        table=ReportTable(
            columns=["variant", *columns],
            rows=[[name, *row.values()] for name, row in ablations.items()],
        ),
    )
    yield Section(
        heading="Sensitivity",
        text=f"{PRODUCTION.name}: tails at 40 requests/s, and capacity; Phasor = 1.",
        table=ReportTable(
            columns=["setting", "E2E P99", "TTFT P99", "capacity"],
            rows=[[name, *row] for name, row in sensitivity_table(experiment).items()],
        ),
    )
    splits = [f"{n}P/{8 - n}D" for n in SPLITS]
    yield Section(
        heading="DistServe by split",
        text="Clients per GPU within the SLO, one seed: the search for the best split.",
        table=ReportTable(
            columns=["workload", *splits],
            rows=[[w.name, *np.round(experiment.split_capacities(w), 2).tolist()] for w in RATES],
        ),
    )
