"""The Phasor experiment: each run and each search made once, for figures and report alike."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from scheduler_adapters.commands.reproduce import ReproduceConfig
from scheduler_adapters.papers.phasor_runs import (
    ABLATIONS,
    MEMORY_AWARE,
    NUM_INSTANCES,
    PHASOR,
    SPLITWISE,
    WORKLOADS,
    GpuCluster,
    PaperWorkload,
    PowerMeter,
    Sampled,
    System,
    attainment,
    distserve,
    fragmentation,
    pace_s,
    percentile,
)
from scheduler_adapters.simulator.cluster import ClusterRun
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.workload.requests import Floats

CODE, SUMMARIES, PRODUCTION, SMALL = (WORKLOADS[n] for n in ("S-L", "L-S", "BurstGPT", "S-S"))
RATES = {CODE: (5, 10, 20, 40), SUMMARIES: (4, 6, 8, 10, 12), PRODUCTION: (10, 20, 30, 40, 50, 60)}
ABLATION_RATES = {SUMMARIES: 8, CODE: 20, PRODUCTION: 40}
WINDOW_S = 60.0
SHOCK = {"calm_per_s": 5.0, "shock_per_s": 25.0, "end_s": 180.0}
SPLITS = (2, 3, 4, 5, 6)
SEARCH_SEED = 1000
MOST_CLIENTS = 4096
TOLERANCE = 0.05
SENSITIVITY: dict[str, tuple[float, tuple[tuple[str, float], ...]]] = {
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


@dataclass(frozen=True, slots=True)
class PhasorPoint:
    """One run at a rate. Seconds."""

    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    e2e_p99_s: float
    attainment: float
    """Share of requests that meet both targets."""


class PhasorExperiment:
    """Runs of the systems, each measured once."""

    def __init__(self, config: ReproduceConfig) -> None:
        self.scale = config.scale
        self.seeds = range(config.num_seeds)
        self.testbed = GpuCluster(config.model)
        self.point = cache(self._point)
        self.capacity = cache(self._capacity)
        self.best_split = cache(self._best_split)
        self.one_split = cache(self._one_split)
        self.shock = cache(self._shock)
        self.energy = cache(self._energy)

    def search_seeds(self, workload: PaperWorkload) -> range:
        """Return the seeds of searches: three; one for code, whose runs take ten times as long."""
        return range(1 if workload == CODE else min(3, len(self.seeds)))

    def _point(
        self, system: System, workload: PaperWorkload, rate_per_s: float, seed: int
    ) -> PhasorPoint:
        count = max(2, int(rate_per_s * WINDOW_S * self.scale))
        requests = workload.requests(count, rate_per_s, seed)
        timeline = self.testbed.run(system, workload, requests).timeline
        return PhasorPoint(
            ttft_p99_s=percentile(timeline.ttft_s(), 99),
            tpot_mean_s=float(pace_s(timeline).mean()),
            tpot_p99_s=percentile(pace_s(timeline), 99),
            e2e_p99_s=percentile(timeline.e2e_s(), 99),
            attainment=attainment(timeline, workload),
        )

    def _capacity(self, system: System, workload: PaperWorkload, seed: int) -> float:
        """Return clients per GPU with which both targets are met."""
        most = max(16, int(MOST_CLIENTS * self.scale))

        @cache
        def is_met(clients: int) -> bool:
            return self.testbed.meets_slo(system, workload, clients, seed)

        low = min(most, 64)
        while low > 1 and not is_met(low):
            low //= 2
        found = highest_load(
            lambda load: is_met(int(load)),
            low=low,
            high=2 * low,
            tolerance=min(0.5, TOLERANCE / self.scale),
            grows=True,
            most=most,
            whole=True,
        )
        return found / NUM_INSTANCES

    def split_capacities(self, workload: PaperWorkload) -> Floats:
        """Return the capacity of each of `SPLITS`."""
        found = [self.capacity(distserve(n), workload, SEARCH_SEED) for n in SPLITS]
        return np.array(found)

    def _best_split(self, workload: PaperWorkload) -> System:
        """Return DistServe with the static split of the highest capacity within the SLO."""
        return distserve(SPLITS[int(np.argmax(self.split_capacities(workload)))])

    def _one_split(self) -> System:
        """Return DistServe with the split that is best for all workloads, by geometric mean."""
        capacities = np.array([self.split_capacities(workload) for workload in RATES])
        means = np.log(np.maximum(capacities, 1e-3)).mean(axis=0)
        return distserve(SPLITS[int(np.argmax(means))])

    def system(self, name: str, workload: PaperWorkload) -> System:
        """Return a system as it is for a workload."""
        if name == ONE_SPLIT:
            return self.one_split()
        return self.best_split(workload) if name == "DistServe" else _SYSTEMS[name]

    def values(
        self, name: str, workload: PaperWorkload, rates: Sequence[float], metric: str
    ) -> Floats:
        """Return a metric of every seed and rate, (S, R)."""
        system = self.system(name, workload)
        points = [[self.point(system, workload, r, seed) for r in rates] for seed in self.seeds]
        return np.array([[getattr(point, metric) for point in row] for row in points])

    def changes(
        self, workload: PaperWorkload, rates: Sequence[float], metric: str, baseline: str
    ) -> list[float]:
        """Return Phasor / baseline - 1, the mean over the rates, of every seed."""
        ours, theirs = (self.values(n, workload, rates, metric) for n in ("Phasor", baseline))
        return [float(change) for change in (ours / theirs - 1).mean(axis=1)]

    def _shock(self, name: str, seed: int) -> tuple[ClusterRun, Sampled]:
        """Return a run through the shock, with what its instances looked like."""
        system = self.system(name, PRODUCTION)
        placement = self.testbed.placement(system, PRODUCTION)
        looked_at = Sampled(placement, output_tokens=PRODUCTION.output_tokens)
        requests = PRODUCTION.shock(seed, **SHOCK)
        count = max(20, int(10 * self.scale * len(requests)))  # whole from a tenth on
        requests = requests.take(np.arange(len(requests)) < count)
        return self.testbed.run(system, PRODUCTION, requests, placement=looked_at), looked_at

    def _energy(self, name: str, seed: int) -> tuple[float, float]:
        """Return joules per output token, and output tokens per second, of code at 40/s."""
        system, rate_per_s = self.system(name, CODE), 40
        meters = [PowerMeter(self.testbed.instance.max_num_seqs) for _ in range(NUM_INSTANCES)]
        count = max(2, int(rate_per_s * WINDOW_S * self.scale))
        requests = CODE.requests(count, rate_per_s, seed)
        run = self.testbed.run(system, CODE, requests, observers=lambda number: [meters[number]])
        timeline = run.timeline
        end_s, tokens = float(timeline.finished_s.max()), int(requests.output_tokens.sum())
        return sum(meter.joules(end_s) for meter in meters) / tokens, tokens / end_s


_SYSTEMS = {one.name: one for one in (PHASOR, SPLITWISE, MEMORY_AWARE, *ABLATIONS)} | {
    "Phasor 3P/3D": replace(PHASOR, name="Phasor 3P/3D", pools=(3, 3, 0))
}
BASELINES = ("Splitwise", "DistServe")
ONE_SPLIT = "DistServe, one split for all workloads"


@cache
def experiment_of(config: ReproduceConfig) -> PhasorExperiment:
    """Return the experiment of a configuration; its figures and its report share the runs."""
    return PhasorExperiment(config)


LARGE_BLOCKS = (PRODUCTION.prompt_tokens + PRODUCTION.output_tokens) // 16
"""Of the reference request (b), all being equal."""
BURSTS = (1, 16, 64, None)
"""Requests that are to fit together, for the sweep; None: each in one run of blocks."""


def burst_label(burst: int | None) -> str:
    """Return one of `BURSTS` in words."""
    return "each in one run of blocks" if burst is None else f"requests that are to fit: {burst}"


def fragment_shares(
    experiment: PhasorExperiment, name: str, burst: int | None, seed: int
) -> Floats:
    """Return the fragmentation over time in the shock, for a burst of reference requests."""
    _, looked_at = experiment.shock(name, seed)
    total_blocks = experiment.testbed.instance.kv_blocks
    large_blocks = None if burst is None else burst * LARGE_BLOCKS
    return fragmentation(looked_at.samples, large_blocks, total_blocks)


def ablation_table(experiment: PhasorExperiment) -> dict[str, dict[str, float]]:
    """Return by system TTFT P99 and capacity on each workload, Phasor = 1."""
    table: dict[str, dict[str, float]] = {}
    for system in ABLATIONS:
        row = table[system.name] = {}
        for workload, rate_per_s in ABLATION_RATES.items():
            whole, less = (
                experiment.values(name, workload, (rate_per_s,), "ttft_p99_s")
                for name in ("Phasor", system.name)
            )
            row[f"ttft {workload.name}"] = float((less / whole).mean())
        for workload in ABLATION_RATES:
            ratio = [
                experiment.capacity(system, workload, seed)
                / experiment.capacity(PHASOR, workload, seed)
                for seed in experiment.search_seeds(workload)
            ]
            row[f"capacity {workload.name}"] = float(np.mean(ratio))
    return table


def sensitivity_table(experiment: PhasorExperiment) -> dict[str, tuple[float, float, float]]:
    """Return E2E P99, TTFT P99 at 40 req/s and capacity under each setting, Phasor = 1."""
    table = {}
    seeds = experiment.search_seeds(PRODUCTION)
    cost = experiment.testbed.cost
    whole = [experiment.point(PHASOR, PRODUCTION, 40, seed) for seed in seeds]
    capacity = [experiment.capacity(PHASOR, PRODUCTION, seed) for seed in seeds]
    for name, (factor, settings) in SENSITIVITY.items():
        changed = (("cost", replace(cost, alpha=factor * cost.alpha)), *settings)
        system = replace(PHASOR, name=name, settings=changed)
        points = [experiment.point(system, PRODUCTION, 40, seed) for seed in seeds]
        ratios = (
            [p.e2e_p99_s / w.e2e_p99_s for p, w in zip(points, whole, strict=True)],
            [p.ttft_p99_s / w.ttft_p99_s for p, w in zip(points, whole, strict=True)],
            [
                experiment.capacity(system, PRODUCTION, seed) / base
                for seed, base in zip(seeds, capacity, strict=True)
            ],
        )
        e2e, ttft, clients = (float(np.mean(ratio)) for ratio in ratios)
        table[name] = e2e, ttft, clients
    return table


def relative_capacities(
    experiment: PhasorExperiment,
    system: System,
    workload: PaperWorkload,
    base: System | None = None,
) -> list[float]:
    """Return the capacity of a system / that of DistServe, of every seed of the search."""
    base = base or experiment.best_split(workload)
    return [
        experiment.capacity(system, workload, seed) / experiment.capacity(base, workload, seed)
        for seed in experiment.search_seeds(workload)
    ]


def starvation(run: ClusterRun, looked_at: Sampled) -> tuple[float, float, float, float, float]:
    """Return median TTFT and mean decode batch before and in the shock, and the queues' skew.

    Skew is the longest queue of a prefill instance / the mean of them, over the shock.
    """
    arrival_s = run.timeline.requests.arrival_s
    before, during = arrival_s < 90, (arrival_s >= 90) & (arrival_s < 120)
    first_s = run.timeline.ttft_s()
    decoders = [sample for sample in looked_at.samples if sample.role == "decode"]
    batch_before, batch_during = (
        mean_or_zero([s.num_decoding for s in decoders if start_s <= s.at_s < end_s])
        for start_s, end_s in ((30.0, 90.0), (95.0, 120.0))
    )
    queues: dict[float, list[int]] = {}
    for one in looked_at.samples:
        if one.role == "prefill" and 90 <= one.at_s < 120:
            queues.setdefault(one.at_s, []).append(one.num_queued)
    skews = [
        max(queue) * len(queue) / sum(queue)
        for queue in queues.values()
        if sum(queue) >= len(queue)
    ]
    before_s, during_s = (
        float(np.median(first_s[mask])) if mask.any() else 0.0 for mask in (before, during)
    )
    return before_s, during_s, batch_before, batch_during, mean_or_zero(skews)


def mean_or_zero(values: Sequence[float]) -> float:
    """Return the mean; 0 without values."""
    return sum(values) / len(values) if values else 0.0
