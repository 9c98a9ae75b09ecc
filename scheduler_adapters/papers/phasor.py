"""Phasor against Splitwise and DistServe: tails, capacity, ablations, energy (`phasor.toml`)."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
import pandas as pd

from scheduler_adapters.papers.phasor_cluster import (
    CODE,
    NUM_INSTANCES,
    PRODUCTION,
    SPLITS,
    SUMMARIES,
    SYSTEMS,
    WORKLOADS,
    GpuCluster,
    PowerMeter,
    Sampled,
    fragmentation,
    p99,
    pace_s,
)
from scheduler_adapters.papers.runs import Experiment, ReproduceConfig, SeedValues, seed_values
from scheduler_adapters.simulator.cluster import ClusterRun
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.workload.requests import Floats

LOADS: Final = (CODE.name, SUMMARIES.name, PRODUCTION.name)
WINDOW_S: Final = 60.0
SEARCH_SEED: Final = 1000
MOST_CLIENTS: Final = 4096
DISTSERVE: Final = "DistServe"
ONE_SPLIT: Final = "DistServe, one split for all workloads"
SHOCKED: Final = ("Phasor", "Splitwise", DISTSERVE)
LARGE_BLOCKS: Final = (PRODUCTION.prompt_tokens + PRODUCTION.output_tokens) // 16
"""Blocks of the reference request (b); all requests are equal."""
BURSTS: Final = (1, 16, 64)
"""Reference requests that are to fit, by which fragments are measured."""


class PhasorExperiment(Experiment):
    """Runs by system, workload (`load`) and rate; searches for capacity; runs through a shock."""

    once = ("capacity", "shock")

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        self.cluster = GpuCluster(config.model)

    def measure(
        self, system: str, *, load: str, rate: float, metered: bool = False, seed: int
    ) -> dict[str, float]:
        """Return tails in seconds; if `metered`, joules per output token and tokens per second."""
        workload, count = WORKLOADS[load], max(2, int(rate * WINDOW_S * self.config.scale))
        requests = workload.requests(count, rate, seed)
        meters = [PowerMeter(self.cluster.instance.max_num_seqs) for _ in range(NUM_INSTANCES)]
        one = SYSTEMS[system]
        timeline = self.cluster.run(
            one,
            self.cluster.placement(one, workload),
            requests,
            observers=lambda number: meters[number : number + metered],
        ).timeline
        if metered:
            end_s, tokens = float(timeline.finished_s.max()), int(requests.output_tokens.sum())
            joules = sum(meter.joules(end_s) for meter in meters)
            return {"joules": joules / tokens, "tokens_per_s": tokens / end_s}
        pace = pace_s(timeline)
        return {
            "ttft_p99_s": p99(timeline.ttft_s()),
            "tpot_mean_s": float(pace.mean()),
            "tpot_p99_s": p99(pace),
            "e2e_p99_s": p99(timeline.e2e_s()),
        }

    def values(self, figure: str, system: str, **setting: Any) -> SeedValues:
        """Return a figure of every seed; DistServe has the split of highest capacity.

        A capacity is searched with three seeds; with one for code, whose runs take ten times as
        long.
        """
        load = setting["load"]
        system = self.resolved(system, load)
        if figure == "capacity":
            seeds = self.seeds[: 1 if load == CODE.name else 3]
            return seed_values([self.capacity(system, load, seed) for seed in seeds])
        return super().values(figure, system, **setting)

    def words(self, load: str = PRODUCTION.name, base: str = "", **rest: Any) -> dict[str, Any]:
        """Return the name of the baseline, DistServe's with its split."""
        split = self.resolved(base, load)
        return {"against": base if split == base else f"{base} ({split})"}

    def resolved(self, name: str, load: str) -> str:
        """Return a system; for DistServe its best split for a workload.

        `ONE_SPLIT` is the split that is best for all workloads, by geometric mean.
        """
        if name not in (DISTSERVE, ONE_SPLIT):
            return name
        loads = LOADS if name == ONE_SPLIT else (load,)
        searched = [[self.capacity(one, on, SEARCH_SEED) for one in SPLITS] for on in loads]
        means = np.log(np.maximum(searched, 1e-3)).mean(axis=0)
        return [*SPLITS][int(np.argmax(means))]

    def capacity(self, system: str, load: str, seed: int) -> float:
        """Return clients per GPU with which both targets are met."""
        scale = self.config.scale
        most = max(16, int(MOST_CLIENTS * scale))

        @cache
        def is_met(clients: int) -> bool:
            return self.cluster.meets_slo(SYSTEMS[system], WORKLOADS[load], clients, seed)

        low = min(most, 64)
        while low > 1 and not is_met(low):
            low //= 2
        limits = {"low": low, "high": 2 * low, "tolerance": min(0.5, 0.05 / scale), "most": most}
        found = highest_load(lambda count: is_met(int(count)), **limits, grows=True, whole=True)
        return found / NUM_INSTANCES

    def shock(self, system: str, seed: int) -> tuple[ClusterRun, pd.DataFrame]:
        """Return a run through the shock, and samples of its instances."""
        one = SYSTEMS[self.resolved(system, PRODUCTION.name)]
        sampled = Sampled(self.cluster.placement(one, PRODUCTION))
        requests = PRODUCTION.shock(seed)
        count = max(20, int(10 * self.config.scale * len(requests)))  # whole from a tenth on
        requests = requests.take(np.arange(len(requests)) < count)
        return self.cluster.run(one, sampled, requests), sampled.samples()

    def fragments(self, system: str, burst: int, seed: int) -> Floats:
        """Return the fragmentation over time in the shock, for a burst of reference requests."""
        samples = self.shock(system, seed)[1]
        return fragmentation(samples, burst * LARGE_BLOCKS, self.cluster.instance.kv_blocks)

    def by_split(self, load: str, rate: int, figure: str) -> dict[str, Any]:
        """Return Phasor's change against every static split, at one rate with one seed."""
        setting = {"load": load, "rate": rate, "most_seeds": 1}
        pairs = {one: self.pair(figure, one, "Phasor", **setting) for one in SPLITS}
        return {"splits": ", ".join(f"{one} {own['value']:+.0%}" for one, own in pairs.items())}

    def fragmentation(self) -> dict[str, Any]:
        """Return peak and mean of the fragmentation in the shock, and peaks for larger bursts."""

        def of_each(statistic: Callable[[Floats], float], burst: int) -> list[float]:
            shares = [[self.fragments(one, burst, n) for n in self.seeds] for one in SHOCKED]
            return [float(np.mean([*map(statistic, own)])) for own in shares]

        peaks, means = {burst: of_each(np.max, burst) for burst in BURSTS}, of_each(np.mean, 1)
        figures = zip(SHOCKED, peaks[1], means, strict=True)
        return {
            "holds": max(peaks[1][1:]) >= 3 * peaks[1][0],
            "each": ", ".join(f"{name} {peak:.2%} / {mean:.2%}" for name, peak, mean in figures),
            "peaks": [", ".join(f"{peak:.1%}" for peak in own) for own in peaks.values()],
            "large": LARGE_BLOCKS,
            "blocks": self.cluster.instance.kv_blocks,
        }

    def capacity_gains(self, base: str) -> dict[str, Any]:
        """Return gains in capacity over a system, for code, summaries and BurstGPT."""
        pairs = [self.pair("capacity", base, "Phasor", load=load) for load in LOADS]
        gains = [pair["ratio"].average for pair in pairs]
        holds = gains[2] == max(gains) > min(gains)
        return {"value": min(gains), "holds": holds, "gains": ", ".join(f"{g:.2f}" for g in gains)}

    def loss(self, variant: str, sign: int, **table: Any) -> dict[str, Any]:
        """Return what each variant loses, mean over the cells, and whether this one loses the most.

        `sign` is 1 where a larger figure is a loss, else -1; `table` are arguments of `ratios`.
        """
        losses = {name: sign * float(np.mean(own)) for name, own in self.ratios(**table).items()}
        most, second = sorted(losses.values(), reverse=True)[:2]
        text = ", ".join(f"{name} {abs(loss):.2f}" for name, loss in losses.items())
        return {"holds": losses[variant] == most > max(second, sign), "losses": text}

    def sensitivity(self, **table: Any) -> dict[str, Any]:
        """Return figures under other settings, Phasor = 1, and the largest change.

        `table` are arguments of `ratios`.
        """
        rows = self.ratios(**table)
        each = [f"{name} {e2e:.2f}/{capacity:.2f}" for name, (e2e, capacity) in rows.items()]
        value = np.abs(np.array([*rows.values()]) - 1).max()
        holds = rows["alpha x 0.5"] != rows["alpha x 2"]
        return {"value": value, "holds": holds, "each": "; ".join(each)}

    def starved(self, system: str) -> dict[str, Any]:
        """Return starvation in the shock, as `starvation` measures it."""
        own = np.mean([starvation(*self.shock(system, seed)) for seed in self.seeds], axis=0)
        holds = own[1] >= 900 / 116 * own[0] and own[3] < own[2] and own[4] >= 2
        return {"holds": holds, "own": own}


def starvation(run: ClusterRun, samples: pd.DataFrame) -> list[float]:
    """Return median TTFT in ms and mean decode batch, before and in the shock, and the queue skew.

    Skew is the longest queue of a prefill instance / the mean of them, over the shock.
    """
    timeline = run.timeline
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
