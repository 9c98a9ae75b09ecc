"""Phasor against Splitwise and DistServe: tails under load, capacity, ablations, energy.

Eight V100-32GB with Qwen2.5-7B in 16 bit, or with `--model llama-3-8b`, for which the paper prints
no figures of its own; step times and KV memory from public sizes, products at the 121 TFLOP/s that
the paper measured: a prompt of 1,024 tokens takes 0.119 s with Qwen2.5-7B, in the paper 0.116.
Prompts go first and whole, up to 2,048 tokens a step; what is evicted is computed anew. KV goes
over 25 GB/s for each instance. Phasor and Splitwise have 3 prefill, 3 decode and 2 elastic or mixed
instances, DistServe the static split with the highest capacity within the
SLO, searched for each workload. Lengths are those of Table 1 for every request: if BurstGPT's were
spread with a CV of 1, one in a hundred prompts alone would take longer than its TTFT budget.
BurstGPT arrives in bursts (gamma, CV 3), the others by Poisson. Runs at a rate last 60 s and are
served to the end; the paper does not state its loads for code and summarisation. Intervals are 95%
over the seeds, of changes paired by seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from scheduler_adapters.commands.reproduce import PaperFigure, ReproduceConfig
from scheduler_adapters.papers.phasor_experiment import (
    BASELINES,
    BURSTS,
    CODE,
    LARGE_BLOCKS,
    ONE_SPLIT,
    PRODUCTION,
    RATES,
    SMALL,
    SPLITS,
    SUMMARIES,
    PhasorExperiment,
    ablation_table,
    burst_label,
    experiment_of,
    fragment_shares,
    relative_capacities,
    sensitivity_table,
    starvation,
)
from scheduler_adapters.papers.phasor_report import report_sections
from scheduler_adapters.papers.phasor_runs import (
    ABLATIONS,
    NUM_INSTANCES,
    PHASOR,
    SPLITWISE,
    PaperWorkload,
    distserve,
)
from scheduler_adapters.reporting.latency_tables import with_interval
from scheduler_adapters.reporting.page import Section


def figures(config: ReproduceConfig) -> list[PaperFigure]:
    """The rows of the paper's evaluation."""
    experiment = experiment_of(config)
    return [
        *_end_to_end_rows(experiment),
        *_change_rows(experiment, SUMMARIES, "ttft_p99_s", _PAPER_TTFT, -0.20, "TTFT P99"),
        _order_row(experiment, "tpot_mean_s", RATES[CODE], "-15.6% / -7.6%", "TPOT mean"),
        _order_row(experiment, "tpot_p99_s", (40,), "136.8 / 121.2 / 112.8 ms", "TPOT P99"),
        _order_row(experiment, "e2e_p99_s", (40,), "216.4 / 192.4 / 174.6 s", "E2E P99"),
        _fragmentation_row(experiment),
        *_capacity_rows(experiment),
        *_ablation_rows(experiment),
        _sensitivity_row(experiment),
        _energy_row(experiment),
        _starvation_row(experiment),
        _small_row(experiment),
    ]


_CHANGE = "{:+.1%}"
_PAPER_TTFT = {"Splitwise": "-44.2%", "DistServe": "-34.1%"}
_PAPER_E2E = {"Splitwise": "-34.8%", "DistServe": "-22.4%"}
_PAPER_E2E_HIGH = {
    "Splitwise": "338.6 -> 206.8 s (-38.9%)",
    "DistServe": "278.4 -> 206.8 s (-25.7%)",
}


def _end_to_end_rows(experiment: PhasorExperiment) -> Iterator[PaperFigure]:
    high = tuple(rate for rate in RATES[PRODUCTION] if rate >= 40)
    yield from _change_rows(
        experiment, PRODUCTION, "e2e_p99_s", _PAPER_E2E_HIGH, -0.15, "E2E P99", high
    )
    yield from _change_rows(experiment, PRODUCTION, "e2e_p99_s", _PAPER_E2E, -0.10, "E2E P99")


def _change_rows(
    experiment: PhasorExperiment,
    workload: PaperWorkload,
    metric: str,
    paper: dict[str, str],
    least: float,
    label: str,
    rates: Sequence[float] = (),
) -> Iterator[PaperFigure]:
    """A row for each baseline: the change of a metric, mean over the rates."""
    rates = rates or RATES[workload]
    for baseline in (*BASELINES, ONE_SPLIT):
        found = experiment.changes(workload, rates, metric, baseline)
        ours, theirs = (
            experiment.values(name, workload, rates, metric).mean() for name in ("Phasor", baseline)
        )
        yield PaperFigure(
            metric=f"{label}, mean over loads",
            workload=f"{workload.name}, {rates[0]}-{rates[-1]} req/s",
            baseline=_named(experiment, baseline, workload),
            paper=paper.get(baseline, paper["DistServe"]),
            ours=f"{with_interval(found, _CHANGE)}; {theirs:.3g} -> {ours:.3g} s",
            reproduced=float(np.mean(found)) <= least,
            criterion=f"{least:.0%} or better",
            pre_set=baseline != ONE_SPLIT,
            note="" if baseline == "Splitwise" else _by_split(experiment, workload, rates, metric),
        )


def _by_split(
    experiment: PhasorExperiment, workload: PaperWorkload, rates: Sequence[float], metric: str
) -> str:
    """Return Phasor's change against every static split, at the middle rate, with one seed."""
    rate, seed = rates[len(rates) // 2], experiment.seeds[0]
    ours, *theirs = (
        getattr(experiment.point(system, workload, rate, seed), metric)
        for system in (PHASOR, *map(distserve, SPLITS))
    )
    splits = ", ".join(
        f"{n}P/{NUM_INSTANCES - n}D {ours / other - 1:+.0%}"
        for n, other in zip(SPLITS, theirs, strict=True)
    )
    return f"it depends on the split of DistServe; at {rate} req/s, one seed: {splits}"


def _named(experiment: PhasorExperiment, name: str, workload: PaperWorkload) -> str:
    if name == "Splitwise":
        return name
    prefill, decode, _ = experiment.system(name, workload).pools
    return f"{name} ({prefill}P/{decode}D)"


def _order_row(
    experiment: PhasorExperiment, metric: str, rates: Sequence[float], paper: str, label: str
) -> PaperFigure:
    names = ("Splitwise", "DistServe", "Phasor")
    found = [experiment.values(name, CODE, rates, metric) for name in names]
    worst, middle, best = (float(values.mean()) for values in found)
    return PaperFigure(
        metric=f"{label} of code generation",
        workload=f"{CODE.name}, {rates[0]}-{rates[-1]} req/s"
        if len(rates) > 1
        else "S-L, 40 req/s",
        baseline="Splitwise / DistServe",
        paper=paper,
        ours=f"{worst:.3g} / {middle:.3g} / {best:.3g} s; against DistServe "
        + with_interval(experiment.changes(CODE, rates, metric, "DistServe"), _CHANGE),
        reproduced=best < middle < worst,
        criterion="Phasor < DistServe < Splitwise",
    )


def _fragmentation_row(experiment: PhasorExperiment) -> PaperFigure:
    names = ("Phasor", *BASELINES)
    peaks: dict[int | None, list[float]] = {}
    for burst in BURSTS:
        shares = [
            [fragment_shares(experiment, n, burst, s) for s in experiment.seeds] for n in names
        ]
        peaks[burst] = [float(np.mean([share.max() for share in of_one])) for of_one in shares]
        if burst == 1:
            means = [float(np.mean([share.mean() for share in of_one])) for of_one in shares]
    ours, *others = peaks[1]
    sweep = "; ".join(
        f"{burst_label(n)}: " + ", ".join(f"{p:.1%}" for p in peaks[n]) for n in BURSTS[1:]
    )
    return PaperFigure(
        metric="fragmentation (H_frag / KV memory), peak / mean",
        workload="BurstGPT lengths, shock 5 -> 25 req/s",
        baseline="Splitwise, DistServe",
        paper="peak 49.65% (baseline), mean 6.2% (Phasor)",
        ours=", ".join(
            f"{name} {peak:.2%} / {mean:.2%}"
            for name, peak, mean in zip(names, peaks[1], means, strict=True)
        ),
        reproduced=max(others) >= 3 * ours,
        criterion="a baseline's peak is 3 times Phasor's or more",
        note="what is left over when requests are taken in is less than one of them, here "
        f"{LARGE_BLOCKS} of {experiment.testbed.instance.kv_blocks:,} blocks. Peaks of "
        f"{', '.join(names)} by other readings: {sweep}",
    )


_PAPER_CAPACITY = {CODE: (0.91, 1.59), SUMMARIES: (0.86, 1.63), PRODUCTION: (0.93, 1.85)}


def _capacity_rows(experiment: PhasorExperiment) -> Iterator[PaperFigure]:
    gains = {}
    for workload, (paper_splitwise, paper_phasor) in _PAPER_CAPACITY.items():
        ours, theirs = (
            relative_capacities(experiment, one, workload) for one in (PHASOR, SPLITWISE)
        )
        gains[workload] = float(np.mean(ours))
        base = experiment.best_split(workload)
        clients = [
            experiment.capacity(base, workload, seed) for seed in experiment.search_seeds(workload)
        ]
        yield PaperFigure(
            metric="capacity within the SLO, DistServe = 1",
            workload=f"{workload.name}, closed loop",
            baseline=_named(experiment, "DistServe", workload),
            paper=f"Phasor {paper_phasor}, Splitwise {paper_splitwise}",
            ours=f"Phasor {with_interval(ours, '{:.2f}')}, "
            f"Splitwise {with_interval(theirs, '{:.2f}')}; "
            f"DistServe {np.mean(clients):.3g} clients per GPU",
            reproduced=gains[workload] > 1.2,
            criterion="above 1.2",
        )
    yield PaperFigure(
        metric="gain in capacity, by workload",
        workload="S-L, L-S, BurstGPT",
        baseline="DistServe",
        paper="1.59, 1.63, 1.85",
        ours=", ".join(f"{gain:.2f}" for gain in gains.values()),
        reproduced=gains[PRODUCTION] == max(gains.values()) > min(gains.values()),
        criterion="largest for BurstGPT",
    )
    one = experiment.one_split()
    ratios = [
        float(np.mean(relative_capacities(experiment, PHASOR, workload, base=one)))
        for workload in _PAPER_CAPACITY
    ]
    yield PaperFigure(
        metric="gain in capacity over DistServe with one split for all workloads",
        workload="S-L, L-S, BurstGPT",
        baseline=_named(experiment, ONE_SPLIT, PRODUCTION),
        paper="1.59, 1.63, 1.85",
        ours=", ".join(f"{ratio:.2f}" for ratio in ratios),
        reproduced=min(ratios) > 1.2 and ratios[-1] == max(ratios),
        criterion="above 1.2 in all, largest for BurstGPT",
        pre_set=False,
    )


_ABLATION_ROWS = (
    ("w/o Phi", "ttft", ".92 .95 .90 (full: .66 .91 .74)", "the largest loss in TTFT of the three"),
    ("w/o mixed pool", "capacity BurstGPT", "1.48 (full: 1.85)", "the largest loss for BurstGPT"),
    ("w/o defragmentation", "capacity S-L", "1.35 (full: 1.59)", "the largest loss for code"),
)


def _ablation_rows(experiment: PhasorExperiment) -> Iterator[PaperFigure]:
    table = ablation_table(experiment)
    for name, column, paper, criterion in _ABLATION_ROWS:
        sign = 1 if column == "ttft" else -1
        losses = {
            other: sign * float(np.mean([v for key, v in row.items() if key.startswith(column)]))
            for other, row in table.items()
        }
        yield PaperFigure(
            metric=f"{name}: {'TTFT P99, mean of three' if sign > 0 else column}",
            workload="8 (L-S), 20 (S-L), 40 (BurstGPT) req/s" if sign > 0 else "closed loop",
            baseline="Phasor = 1",
            paper=paper,
            ours=", ".join(f"{other} {abs(loss):.2f}" for other, loss in losses.items()),
            reproduced=losses[name] == max(losses.values()) > sorted(losses.values())[1]
            and losses[name] > sign,
            criterion=criterion,
            note=_spread_lengths(experiment) if name == "w/o Phi" else "",
        )


def _spread_lengths(experiment: PhasorExperiment) -> str:
    """Return what Phi is worth where prompts differ: with equal ones it counts requests."""
    workload, without_phi, rate = replace(PRODUCTION, length_cv=1.0), ABLATIONS[0], 15
    ratios = [
        experiment.point(without_phi, workload, rate, seed).ttft_p99_s
        / experiment.point(PHASOR, workload, rate, seed).ttft_p99_s
        for seed in experiment.seeds
    ]
    return (
        "prompts of one length make Phi a count of requests; with lengths spread by a CV of 1, at "
        f"{rate} req/s (BurstGPT), TTFT P99 without it is {with_interval(ratios, '{:.2f}')} "
        "of Phasor's"
    )


def _sensitivity_row(experiment: PhasorExperiment) -> PaperFigure:
    table = sensitivity_table(experiment)
    is_near = all(abs(ratio - 1) <= 0.15 for row in table.values() for ratio in row[::2])
    half, double = table["alpha x 0.5"], table["alpha x 2"]
    return PaperFigure(
        metric="sensitivity: E2E P99 / capacity",
        workload="BurstGPT, 40 req/s; closed loop",
        baseline="Phasor = 1",
        paper="1.14/.92, .99/.94; 1.09/.96, 1.00/.98; .99/1.01, 1.06/.97; 1.02/.99, 1.04/.95",
        ours="; ".join(f"{name} {row[0]:.2f}/{row[2]:.2f}" for name, row in table.items()),
        reproduced=is_near and half != double,
        criterion="all within 15%, and alpha x 0.5 not as x 2",
    )


def _energy_row(experiment: PhasorExperiment) -> PaperFigure:
    names = ("Splitwise", "DistServe", "Phasor")
    runs = [[experiment.energy(name, seed) for seed in experiment.seeds] for name in names]
    joules = [np.array(run)[:, 0] for run in runs]
    rates = [float(np.array(run)[:, 1].mean()) for run in runs]
    worst, middle, best = (float(one.mean()) for one in joules)
    against = [with_interval((joules[2] / other - 1).tolist(), _CHANGE) for other in joules[:2]]
    return PaperFigure(
        metric="energy per output token, power model of the sheet's start values",
        workload="S-L, 40 req/s",
        baseline="Splitwise / DistServe",
        paper=".243 / .201 / .175 J (1315, 1410, 1720 W; 5422, 7009, 9820 tokens/s)",
        ours=f"{worst:.3f} / {middle:.3f} / {best:.3f} J "
        f"({', '.join(f'{rate:.0f}' for rate in rates)} tokens/s); {against[0]}, {against[1]}",
        reproduced=best < middle < worst and best <= 0.9 * middle,
        criterion="Phasor < DistServe < Splitwise, by 10% or more",
    )


def _starvation_row(experiment: PhasorExperiment) -> PaperFigure:
    found = {
        name: np.mean([starvation(*experiment.shock(name, seed)) for seed in experiment.seeds], 0)
        for name in ("memory-aware", "Phasor 3P/3D")
    }
    before_s, during_s, batch_before, batch_during, skew = found["memory-aware"].tolist()
    _, other_s, _, other_batch, other_skew = found["Phasor 3P/3D"].tolist()
    return PaperFigure(
        metric="starvation with memory-aware routing: median TTFT, decode batch, queue skew",
        workload="BurstGPT lengths, shock 5 -> 25 req/s, 3P/3D",
        baseline="before the shock; Phasor without an elastic pool",
        paper="116 -> > 900 ms; batch 48 -> < 16; skew >= 2",
        ours=f"{before_s * 1e3:.0f} -> {during_s * 1e3:.0f} ms; batch {batch_before:.1f} -> "
        f"{batch_during:.1f}; skew {skew:.1f}. Phasor {other_s * 1e3:.0f} ms; {other_batch:.1f}; "
        f"{other_skew:.1f}",
        reproduced=during_s >= 900 / 116 * before_s and batch_during < batch_before and skew >= 2,
        criterion="TTFT grows as in the paper, the decode batch falls, skew >= 2",
    )


def _small_row(experiment: PhasorExperiment) -> PaperFigure:
    found = {
        name: experiment.values(name, SMALL, (40,), "e2e_p99_s") for name in (*BASELINES, "Phasor")
    }
    splitwise, dist, ours = (float(values.mean()) for values in found.values())
    return PaperFigure(
        metric="overhead on small requests: E2E P99",
        workload="S-S, 40 req/s",
        baseline="Splitwise / DistServe",
        paper="33.5 / 32.4 / 28.9 s",
        ours=f"{splitwise:.3g} / {dist:.3g} / {ours:.3g} s",
        reproduced=ours <= 1.02 * min(splitwise, dist),
        criterion="not worse (2%)",
    )


def sections(config: ReproduceConfig) -> list[Section]:
    """The figures of the report."""
    return report_sections(experiment_of(config))
