"""Phasor against Splitwise and DistServe: tails under load, capacity, ablations, energy.

Eight V100-32GB with Qwen2.5-7B in 16 bit, or with `--model llama-3-8b`, for which the paper prints
no figures of its own. Step times and KV memory are from public sizes, products at the 121 TFLOP/s
that the paper measured: a prompt of 1,024 tokens takes 0.119 s with Qwen2.5-7B, in the paper 0.116.
Prompts run first and whole, up to 2,048 tokens a step; what is evicted is computed anew. KV moves
over 25 GB/s for each instance. Phasor and Splitwise have 3 prefill, 3 decode and 2 elastic or mixed
instances. DistServe has the static split with the highest capacity within the SLO, searched for
each workload. Lengths are those of Table 1 for every request: with a CV of 1, one in a hundred
prompts of BurstGPT alone would take longer than its TTFT budget. BurstGPT arrives in bursts (gamma,
CV 3), the others by Poisson. Runs at a rate last 60 s and are served to the end; the paper does not
state its loads for code and summarisation. Intervals are 95% over the seeds, of changes paired by
seed.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

from scheduler_adapters.papers.page import bars_section, instances_section, lines_section
from scheduler_adapters.papers.phasor_cluster import (
    ABLATIONS,
    CODE,
    NUM_INSTANCES,
    PHASOR,
    PRODUCTION,
    SMALL,
    SUMMARIES,
    SYSTEMS,
    GpuCluster,
    PaperWorkload,
    PowerMeter,
    Sampled,
    System,
    distserve,
    fragmentation,
    p99,
    pace_s,
)
from scheduler_adapters.papers.rows import PaperFigure, row
from scheduler_adapters.papers.runs import Experiment, ReproduceConfig, SeedValues, seed_values
from scheduler_adapters.reporting.page import ReportTable, Section
from scheduler_adapters.simulator.cluster import ClusterRun
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.timeline.latency_metrics import tpot_s
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Floats

Rates = tuple[int, ...]
RATES: Final[dict[PaperWorkload, Rates]] = {
    CODE: (5, 10, 20, 40),
    SUMMARIES: (4, 6, 8, 10, 12),
    PRODUCTION: (10, 20, 30, 40, 50, 60),
}
ABLATION_RATES: Final = {SUMMARIES: 8, CODE: 20, PRODUCTION: 40}
WINDOW_S: Final = 60.0
SPLITS: Final = (2, 3, 4, 5, 6)
SEARCH_SEED: Final = 1000
MOST_CLIENTS: Final = 4096
SENSITIVITY: Final[dict[str, tuple[float, tuple[tuple[str, float], ...]]]] = {
    "alpha x 0.5": (0.5, ()),
    "alpha x 2": (2.0, ()),
    "theta_frag 0.10": (1.0, (("theta_frag", 0.10),)),
    "theta_frag 0.35": (1.0, (("theta_frag", 0.35),)),
    "dt 20 ms": (1.0, (("tick_s", 0.02), ("cool_down_ticks", 50))),
    "dt 200 ms": (1.0, (("tick_s", 0.2), ("cool_down_ticks", 5))),
    "theta_flow 0.50": (1.0, (("theta_flow", 0.50),)),
    "theta_flow 0.80": (1.0, (("theta_flow", 0.80),)),
}
"""Factor of alpha, and settings of Phasor; the cool-down stays 1 s."""
ONE_SPLIT: Final = "DistServe, one split for all workloads"
BASELINES: Final = ("Splitwise", "DistServe")
NAMES: Final = (*BASELINES, "Phasor")
_TAILS: Final = ("e2e_p99_s", "ttft_p99_s")
LARGE_BLOCKS: Final = (PRODUCTION.prompt_tokens + PRODUCTION.output_tokens) // 16
"""Blocks of the reference request (b); all requests are equal."""
BURSTS: Final[dict[int | None, str]] = {
    **{n: f"requests that are to fit: {n}" for n in (1, 16, 64)},
    None: "each in one run of blocks",
}
"""Sizes of the burst of reference requests by which fragments are measured."""


class PhasorExperiment(Experiment):
    """Runs by system, workload and rate; searches for capacity; runs through a shock."""

    once = ("capacity", "shock", "energy", "ablations", "sensitivity")

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        self.cluster = GpuCluster(config.model)

    def search_seeds(self, workload: PaperWorkload) -> range:
        """Return the seeds of searches: three; one for code, whose runs take ten times as long."""
        return self.seeds[: 1 if workload == CODE else 3]

    def measure(
        self, system: System, workload: PaperWorkload, rate_per_s: float, *, seed: int
    ) -> dict[str, float]:
        """Return tails in seconds, and the share of requests that meet both targets."""
        count = max(2, int(rate_per_s * WINDOW_S * self.config.scale))
        requests = workload.requests(count, rate_per_s, seed)
        timeline = self.cluster.run(system, workload, requests).timeline
        pace, ttft_s = pace_s(timeline), timeline.ttft_s()
        is_met = (ttft_s <= workload.ttft_slo_s) & ~(tpot_s(timeline) > workload.tpot_slo_s)
        return {
            "ttft_p99_s": p99(ttft_s),
            "tpot_mean_s": float(pace.mean()),
            "tpot_p99_s": p99(pace),
            "e2e_p99_s": p99(timeline.e2e_s()),
            "attainment": float(is_met.mean()),
        }

    def capacity(self, system: System, workload: PaperWorkload, seed: int) -> float:
        """Return clients per GPU with which both targets are met."""
        scale = self.config.scale
        most = max(16, int(MOST_CLIENTS * scale))

        @cache
        def is_met(clients: int) -> bool:
            return self.cluster.meets_slo(system, workload, clients, seed)

        low = min(most, 64)
        while low > 1 and not is_met(low):
            low //= 2
        limits = {"low": low, "high": 2 * low, "tolerance": min(0.5, 0.05 / scale), "most": most}
        found = highest_load(lambda load: is_met(int(load)), **limits, grows=True, whole=True)
        return found / NUM_INSTANCES

    def capacities(self, name: str, workload: PaperWorkload) -> SeedValues:
        """Return the capacity for each seed of the searches."""
        system, seeds = self.system(name, workload), self.search_seeds(workload)
        return seed_values([self.capacity(system, workload, seed) for seed in seeds])

    def split_capacities(self, workload: PaperWorkload) -> Floats:
        """Return the capacity of each of `SPLITS`."""
        return np.array([self.capacity(distserve(n), workload, SEARCH_SEED) for n in SPLITS])

    def system(self, name: str, workload: PaperWorkload) -> System:
        """Return a system as it is for a workload: DistServe has the split of highest capacity.

        `ONE_SPLIT` is the split that is best for all workloads, by geometric mean.
        """
        if name == "DistServe":
            return distserve(SPLITS[int(np.argmax(self.split_capacities(workload)))])
        if name == ONE_SPLIT:
            capacities = np.array([self.split_capacities(each) for each in RATES])
            means = np.log(np.maximum(capacities, 1e-3)).mean(axis=0)
            return distserve(SPLITS[int(np.argmax(means))])
        return SYSTEMS[name]

    def named(self, name: str, workload: PaperWorkload) -> str:
        """Return the name of a system, DistServe's with its split."""
        prefill, decode, _ = self.system(name, workload).pools
        return name if name == "Splitwise" else f"{name} ({prefill}P/{decode}D)"

    def sweep(self, name: str, workload: PaperWorkload, rates: Rates, metric: str) -> Floats:
        """Return a metric of every seed and rate, (S, R)."""
        system = self.system(name, workload)
        return np.array([self.values(metric, system, workload, rate) for rate in rates]).T

    def changes(
        self, workload: PaperWorkload, rates: Rates, metric: str, baseline: str
    ) -> SeedValues:
        """Return Phasor / baseline - 1, the mean over the rates, of every seed."""
        ours, theirs = (self.sweep(n, workload, rates, metric) for n in ("Phasor", baseline))
        return seed_values((ours / theirs - 1).mean(axis=1))

    def shock(self, name: str, seed: int) -> tuple[ClusterRun, pd.DataFrame]:
        """Return a run through the shock, and samples of its instances."""
        system = SYSTEMS.get(name) or self.system(name, PRODUCTION)
        placement = self.cluster.placement(system, PRODUCTION)
        sampled = Sampled(placement, output_tokens=PRODUCTION.output_tokens)
        requests = PRODUCTION.shock(seed, calm_per_s=5.0, shock_per_s=25.0, end_s=180.0)
        count = max(20, int(10 * self.config.scale * len(requests)))  # whole from a tenth on
        requests = requests.take(np.arange(len(requests)) < count)
        run = self.cluster.run(system, PRODUCTION, requests, placement=sampled)
        return run, sampled.samples

    def energy(self, name: str, seed: int) -> tuple[float, float]:
        """Return joules per output token, and output tokens per second, of code at 40/s."""
        meters = [PowerMeter(self.cluster.instance.max_num_seqs) for _ in range(NUM_INSTANCES)]
        count = max(2, int(40 * WINDOW_S * self.config.scale))
        requests, system = CODE.requests(count, 40, seed), self.system(name, CODE)
        run = self.cluster.run(system, CODE, requests, observers=lambda number: [meters[number]])
        end_s, tokens = float(run.timeline.finished_s.max()), int(requests.output_tokens.sum())
        return sum(meter.joules(end_s) for meter in meters) / tokens, tokens / end_s

    def fragments(self, name: str, burst: int | None, seed: int) -> Floats:
        """Return the fragmentation over time in the shock, for a burst of reference requests."""
        large_blocks = None if burst is None else burst * LARGE_BLOCKS
        samples = self.shock(name, seed)[1]
        return fragmentation(samples, large_blocks, self.cluster.instance.kv_blocks)

    def ablations(self) -> dict[str, dict[str, float]]:
        """Return by variant TTFT P99 and capacity on each workload, Phasor = 1."""
        table: dict[str, dict[str, float]] = {}
        for name in (system.name for system in ABLATIONS):
            own = table[name] = {}
            for workload, rate in ABLATION_RATES.items():
                less, whole = (
                    self.sweep(one, workload, (rate,), "ttft_p99_s") for one in (name, "Phasor")
                )
                own[f"ttft {workload.name}"] = float((less / whole).mean())
            for workload in ABLATION_RATES:
                less, whole = (self.capacities(one, workload) for one in (name, "Phasor"))
                own[f"capacity {workload.name}"] = float((less / whole).mean())
        return table

    def sensitivity(self) -> dict[str, list[float]]:
        """Return E2E P99, TTFT P99 at 40 req/s and capacity under each setting, Phasor = 1."""
        cost, table = self.cluster.cost, {}
        for name, (factor, settings) in SENSITIVITY.items():
            changed = (("cost", replace(cost, alpha=factor * cost.alpha)), *settings)
            ratios = []
            for seed in self.search_seeds(PRODUCTION):
                ours, whole = (
                    [
                        *(self.run(system, PRODUCTION, 40, seed=seed)[one] for one in _TAILS),
                        self.capacity(system, PRODUCTION, seed),
                    ]
                    for system in (System(name, settings=changed), PHASOR)
                )
                ratios.append(np.divide(ours, whole))
            table[name] = np.mean(ratios, axis=0).tolist()
        return table


def starvation(run: ClusterRun, samples: pd.DataFrame) -> list[float]:
    """Return median TTFT in ms and mean decode batch, before and in the shock, and the queue skew.

    Skew is the longest queue of a prefill instance / the mean of them, over the shock.
    """
    timeline: Timeline = run.timeline
    arrival_s = timeline.requests.arrival_s
    medians_ms = []
    for rows in (arrival_s < 90, (arrival_s >= 90) & (arrival_s < 120)):
        medians_ms.append(1e3 * float(np.median(timeline.ttft_s()[rows])) if rows.any() else 0.0)
    decoders = samples[samples["role"] == "decode"]
    batches = [
        decoders["decoding"][decoders["at_s"].between(start_s, end_s, inclusive="left")].mean()
        for start_s, end_s in ((30.0, 90.0), (95.0, 120.0))
    ]
    in_shock = samples["at_s"].between(90, 120, inclusive="left")
    queues = samples[(samples["role"] == "prefill") & in_shock].groupby("at_s")["queued"]
    sums, counts = queues.sum(), queues.count()
    skews = (queues.max() * counts / sums)[sums >= counts]
    return [*medians_ms, *np.nan_to_num([*batches, skews.mean()]).tolist()]


def swept_rows(e: PhasorExperiment) -> Iterator[PaperFigure]:
    """Yield tails against the baselines, mean over the rates."""
    high = RATES[PRODUCTION][3:]
    bursts = ("338.6 -> 206.8 s (-38.9%)", "278.4 -> 206.8 s (-25.7%)")
    for workload, rates, metric, label, least, papers in (
        (PRODUCTION, high, "e2e_p99_s", "E2E P99", -0.15, bursts),
        (PRODUCTION, RATES[PRODUCTION], "e2e_p99_s", "E2E P99", -0.10, ("-34.8%", "-22.4%")),
        (SUMMARIES, RATES[SUMMARIES], "ttft_p99_s", "TTFT P99", -0.20, ("-44.2%", "-34.1%")),
    ):
        for baseline, paper in zip((*BASELINES, ONE_SPLIT), (*papers, papers[1]), strict=True):
            change = e.changes(workload, rates, metric, baseline)
            ours, theirs = (
                e.sweep(name, workload, rates, metric).mean() for name in ("Phasor", baseline)
            )
            yield row(
                f"{label}, mean over loads | {workload.name}, {rates[0]}-{rates[-1]} req/s | "
                + e.named(baseline, workload),
                paper,
                f"{change:+.1%}; {theirs:.3g} -> {ours:.3g} s",
                change.mean() <= least,
                f"{least:.0%} or better",
                pre_set=baseline != ONE_SPLIT,
                note="" if baseline == "Splitwise" else _by_split(e, workload, rates, metric),
            )
    for metric, rates, at, paper, label in (
        ("tpot_mean_s", RATES[CODE], "S-L, 5-40", "-15.6% / -7.6%", "TPOT mean"),
        ("tpot_p99_s", (40,), "S-L, 40", "136.8 / 121.2 / 112.8 ms", "TPOT P99"),
        ("e2e_p99_s", (40,), "S-L, 40", "216.4 / 192.4 / 174.6 s", "E2E P99"),
    ):
        worst, middle, best = (e.sweep(name, CODE, rates, metric).mean() for name in NAMES)
        yield row(
            f"{label} of code generation | {at} req/s | Splitwise / DistServe",
            paper,
            f"{worst:.3g} / {middle:.3g} / {best:.3g} s; against DistServe "
            f"{e.changes(CODE, rates, metric, 'DistServe'):+.1%}",
            best < middle < worst,
            "Phasor < DistServe < Splitwise",
        )


def _by_split(e: PhasorExperiment, workload: PaperWorkload, rates: Rates, metric: str) -> str:
    """Return Phasor's change against every static split, at the middle rate, with one seed."""
    rate = rates[len(rates) // 2]
    ours, *theirs = (
        e.run(system, workload, rate, seed=0)[metric]
        for system in (PHASOR, *map(distserve, SPLITS))
    )
    splits = ", ".join(
        f"{n}P/{NUM_INSTANCES - n}D {ours / other - 1:+.0%}"
        for n, other in zip(SPLITS, theirs, strict=True)
    )
    return f"it depends on the split of DistServe; at {rate} req/s, one seed: {splits}"


def fragmentation_row(e: PhasorExperiment) -> PaperFigure:
    """Return peak and mean of the fragmentation in the shock."""
    names = ("Phasor", *BASELINES)
    shares = {
        burst: [[e.fragments(name, burst, seed) for seed in e.seeds] for name in names]
        for burst in BURSTS
    }
    peaks = {
        burst: [float(np.mean([share.max() for share in own])) for own in of_all]
        for burst, of_all in shares.items()
    }
    means = [float(np.mean([share.mean() for share in own])) for own in shares[1]]
    sweep = "; ".join(
        f"{label}: " + ", ".join(f"{peak:.1%}" for peak in peaks[burst])
        for burst, label in BURSTS.items()
        if burst != 1
    )
    return row(
        "fragmentation (H_frag / KV memory), peak / mean | BurstGPT lengths, shock 5 -> 25 req/s | "
        "Splitwise, DistServe",
        "peak 49.65% (baseline), mean 6.2% (Phasor)",
        ", ".join(
            f"{name} {peak:.2%} / {mean:.2%}"
            for name, peak, mean in zip(names, peaks[1], means, strict=True)
        ),
        max(peaks[1][1:]) >= 3 * peaks[1][0],
        "a baseline's peak is 3 times Phasor's or more",
        note="what is left over when requests are taken in is less than one of them, here "
        f"{LARGE_BLOCKS} of {e.cluster.instance.kv_blocks:,} blocks. Peaks of "
        f"{', '.join(names)} by other readings: {sweep}",
    )


def capacity_rows(e: PhasorExperiment) -> Iterator[PaperFigure]:
    """Yield capacities within the SLO, relative to DistServe's."""
    gains, over_one = [], []
    for workload, paper in (
        (CODE, "Phasor 1.59, Splitwise 0.91"),
        (SUMMARIES, "Phasor 1.63, Splitwise 0.86"),
        (PRODUCTION, "Phasor 1.85, Splitwise 0.93"),
    ):
        phasor, splitwise, base, one = (
            e.capacities(name, workload) for name in ("Phasor", "Splitwise", "DistServe", ONE_SPLIT)
        )
        ours, theirs = seed_values(phasor / base), seed_values(splitwise / base)
        gains.append(float(ours.mean()))
        over_one.append(float((phasor / one).mean()))
        yield row(
            f"capacity within the SLO, DistServe = 1 | {workload.name}, closed loop | "
            + e.named("DistServe", workload),
            paper,
            f"Phasor {ours:.2f}, Splitwise {theirs:.2f}; "
            f"DistServe {base.mean():.3g} clients per GPU",
            gains[-1] > 1.2,
            "above 1.2",
        )
    yield row(
        "gain in capacity, by workload | S-L, L-S, BurstGPT | DistServe",
        "1.59, 1.63, 1.85",
        ", ".join(f"{gain:.2f}" for gain in gains),
        gains[2] == max(gains) > min(gains),
        "largest for BurstGPT",
    )
    yield row(
        "gain in capacity over DistServe with one split for all workloads | S-L, L-S, BurstGPT | "
        + e.named(ONE_SPLIT, PRODUCTION),
        "1.59, 1.63, 1.85",
        ", ".join(f"{gain:.2f}" for gain in over_one),
        min(over_one) > 1.2 and over_one[2] == max(over_one),
        "above 1.2 in all, largest for BurstGPT",
        pre_set=False,
    )


def ablation_rows(e: PhasorExperiment) -> Iterator[PaperFigure]:
    """Yield the losses without a part, and with other settings."""
    less, whole = (
        e.values("ttft_p99_s", system, replace(PRODUCTION, length_cv=1.0), 15)
        for system in (ABLATIONS[0], PHASOR)
    )
    spread = (
        "prompts of one length make Phi a count of requests; with lengths spread by a CV of 1, at "
        f"15 req/s (BurstGPT), TTFT P99 without it is {seed_values(less / whole):.2f} of Phasor's"
    )
    for name, column, paper, criterion in (
        ("w/o Phi", "ttft", ".92 .95 .90 (full: .66 .91 .74)", "loss in TTFT of the three"),
        ("w/o mixed pool", "capacity BurstGPT", "1.48 (full: 1.85)", "loss for BurstGPT"),
        ("w/o defragmentation", "capacity S-L", "1.35 (full: 1.59)", "loss for code"),
    ):
        what, sign, note = f"{column} | closed loop", -1, ""
        if column == "ttft":
            what = "TTFT P99, mean of three | 8 (L-S), 20 (S-L), 40 (BurstGPT) req/s"
            sign, note = 1, spread
        losses = {
            other: sign * float(np.mean([v for key, v in own.items() if key.startswith(column)]))
            for other, own in e.ablations().items()
        }
        yield row(
            f"{name}: {what} | Phasor = 1",
            paper,
            ", ".join(f"{other} {abs(loss):.2f}" for other, loss in losses.items()),
            losses[name] == max(losses.values()) > max(sorted(losses.values())[1], sign),
            f"the largest {criterion}",
            note=note,
        )
    table = e.sensitivity()
    is_near = all(abs(ratio - 1) <= 0.15 for own in table.values() for ratio in own[::2])
    yield row(
        "sensitivity: E2E P99 / capacity | BurstGPT, 40 req/s; closed loop | Phasor = 1",
        "1.14/.92, .99/.94; 1.09/.96, 1.00/.98; .99/1.01, 1.06/.97; 1.02/.99, 1.04/.95",
        "; ".join(f"{name} {own[0]:.2f}/{own[2]:.2f}" for name, own in table.items()),
        is_near and table["alpha x 0.5"] != table["alpha x 2"],
        "all within 15%, and alpha x 0.5 not as x 2",
    )


def other_rows(e: PhasorExperiment) -> Iterator[PaperFigure]:
    """Yield energy, starvation in the shock, and small requests."""
    runs = np.array([[e.energy(name, seed) for seed in e.seeds] for name in NAMES])
    worst, middle, best = runs[:, :, 0].mean(axis=1)
    first, second = (seed_values(runs[2, :, 0] / other - 1) for other in runs[:2, :, 0])
    rates = ", ".join(f"{rate:.0f}" for rate in runs[:, :, 1].mean(axis=1))
    yield row(
        "energy per output token, power model of the sheet's start values | S-L, 40 req/s | "
        "Splitwise / DistServe",
        ".243 / .201 / .175 J (1315, 1410, 1720 W; 5422, 7009, 9820 tokens/s)",
        f"{worst:.3f} / {middle:.3f} / {best:.3f} J ({rates} tokens/s); "
        f"{first:+.1%}, {second:+.1%}",
        best < middle < worst and best <= 0.9 * middle,
        "Phasor < DistServe < Splitwise, by 10% or more",
    )
    own, other = (
        np.mean([starvation(*e.shock(name, seed)) for seed in e.seeds], axis=0)
        for name in ("memory-aware", "Phasor 3P/3D")
    )
    yield row(
        "starvation with memory-aware routing: median TTFT, decode batch, queue skew | "
        "BurstGPT lengths, shock 5 -> 25 req/s, 3P/3D | "
        "before the shock; Phasor without an elastic pool",
        "116 -> > 900 ms; batch 48 -> < 16; skew >= 2",
        f"{own[0]:.0f} -> {own[1]:.0f} ms; batch {own[2]:.1f} -> {own[3]:.1f}; skew {own[4]:.1f}. "
        f"Phasor {other[1]:.0f} ms; {other[3]:.1f}; {other[4]:.1f}",
        own[1] >= 900 / 116 * own[0] and own[3] < own[2] and own[4] >= 2,
        "TTFT grows as in the paper, the decode batch falls, skew >= 2",
    )
    splitwise, dist, ours = (e.sweep(n, SMALL, (40,), "e2e_p99_s").mean() for n in NAMES)
    yield row(
        "overhead on small requests: E2E P99 | S-S, 40 req/s | Splitwise / DistServe",
        "33.5 / 32.4 / 28.9 s",
        f"{splitwise:.3g} / {dist:.3g} / {ours:.3g} s",
        ours <= 1.02 * min(splitwise, dist),
        "not worse (2%)",
    )


def reproduce(config: ReproduceConfig) -> tuple[list[PaperFigure], list[Section]]:
    """Measure the rows of the paper's evaluation, and draw the figures of the report."""
    e = PhasorExperiment(config)
    rows = [
        *swept_rows(e),
        fragmentation_row(e),
        *capacity_rows(e),
        *ablation_rows(e),
        *other_rows(e),
    ]
    return rows, list(sections(e))


_SHOCK = "BurstGPT lengths, Poisson arrivals at 5 req/s, and 25 req/s from 90 s to 120 s; seed 0."


def sections(experiment: PhasorExperiment) -> Iterator[Section]:
    """Yield instances over time, fragmentation, capacity, attainment, and tables."""
    for name in ("Phasor", "Splitwise"):
        run, samples = experiment.shock(name, 0)
        kinds = ("hand-over after prefill", "live migration")
        yield instances_section(
            f"Instances under {name}",
            role_spans(samples),
            [(m.source, m.destination, m.end_s, kinds[m.stages > 1]) for m in run.migrations],
            "Bars: roles of the instances, sampled twice a second. Lines: requests that moved, "
            f"from source to destination. {_SHOCK}",
            f"instances_{name.lower()}",
        )
    yield lines_section(
        "Fragmentation over time",
        [
            (label, name, 0.5 * i, 100 * share)
            for burst, label in BURSTS.items()
            for name in NAMES
            for i, share in enumerate(experiment.fragments(name, burst, 0))
        ],
        ("time (s)", "unusable KV memory (%)"),
        "Free blocks of decode instances that are left over when as many such bursts as fit are "
        "taken in; or, if each request had one run of blocks, those beside the longest free run. "
        + _SHOCK,
        "fragmentation",
    )
    yield bars_section(
        "Capacity within the SLO",
        {
            f"{name}, {workload.name}": experiment.capacities(name, workload).tolist()
            for workload in ABLATION_RATES
            for name in (*NAMES, *(one.name for one in ABLATIONS))
        },
        "capacity (clients per GPU)",
        "Most clients in a closed loop without think time, with P99 of TTFT and of TPOT within the "
        "targets; 95% interval over three seeds (one for S-L).",
        "capacity",
    )
    yield lines_section(
        "Requests that meet both targets",
        [
            (workload.name, name, rate, float(share))
            for workload, rates in RATES.items()
            for name in NAMES
            for rate, share in zip(
                rates, experiment.sweep(name, workload, rates, "attainment").mean(0), strict=True
            )
        ],
        ("requests/s", "share of requests"),
        "Mean over the seeds.",
        "attainment",
    )
    yield from _tables(experiment)


def _tables(experiment: PhasorExperiment) -> Iterator[Section]:
    splits = {w.name: np.round(experiment.split_capacities(w), 2).tolist() for w in RATES}
    ablations = {name: list(row.values()) for name, row in experiment.ablations().items()}
    columns = [f"{kind} {w.name}" for kind in ("ttft", "capacity") for w in ABLATION_RATES]
    for heading, text, names, rows in (
        (
            "Ablations",
            "TTFT P99 at 8 (L-S), 20 (S-L) and 40 (BurstGPT) requests/s, and capacity; Phasor = 1.",
            ["variant", *columns],
            ablations,
        ),
        (
            "Sensitivity",
            "BurstGPT: tails at 40 requests/s, and capacity; Phasor = 1.",
            ["setting", "E2E P99", "TTFT P99", "capacity"],
            experiment.sensitivity(),
        ),
        (
            "DistServe by split",
            "Clients per GPU within the SLO, one seed: the search for the best split.",
            ["workload", *(f"{n}P/{NUM_INSTANCES - n}D" for n in SPLITS)],
            splits,
        ),
    ):
        table = ReportTable(columns=names, rows=[[name, *row] for name, row in rows.items()])
        yield Section(heading=heading, text=text, table=table)


def role_spans(samples: pd.DataFrame) -> list[tuple[int, str, float, float]]:
    """Return for how long instances had their roles: instance, role, start and end in seconds."""
    spans = []
    for number, own in samples.groupby("instance"):
        role, at_s = own["role"].tolist(), own["at_s"].tolist()
        starts = [i for i in range(len(own)) if not i or role[i] != role[i - 1]]
        for first, last in pairwise([*starts, len(own) - 1]):
            spans.append((int(str(number)), role[first], at_s[first], at_s[last]))
    return spans
