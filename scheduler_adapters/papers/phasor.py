"""Phasor against Splitwise and DistServe: tails, capacity, ablations, energy (`phasor.toml`)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pandas as pd

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
from scheduler_adapters.papers.runs import Experiment, ReproduceConfig, SeedValues, seed_values
from scheduler_adapters.simulator.cluster import ClusterRun
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.timeline.latency_metrics import tpot_s
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Floats

Rates = Sequence[int]
RATES: Final[dict[PaperWorkload, Rates]] = {
    CODE: (5, 10, 20, 40),
    SUMMARIES: (4, 6, 8, 10, 12),
    PRODUCTION: (10, 20, 30, 40, 50, 60),
}
WORKLOADS: Final = {one.name: one for one in (*RATES, SMALL)}
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

    def tails(self, load: str, rates: Rates, name: str, system: str) -> dict[str, Any]:
        """Return Phasor's change of a tail, mean over the rates; by split where it has one."""
        workload = WORKLOADS[load]
        change = self.changes(workload, rates, name, system)
        ours, theirs = (self.sweep(one, workload, rates, name).mean() for one in ("Phasor", system))
        found = {"value": change.mean(), "change": change, "theirs": theirs, "ours": ours}
        if system != "Splitwise":
            found |= self.by_split(workload, rates[len(rates) // 2], name)
        return found | {
            "first": rates[0],
            "last": rates[-1],
            "against": self.named(system, workload),
        }

    def by_split(self, workload: PaperWorkload, rate: int, name: str) -> dict[str, Any]:
        """Return Phasor's change against every static split, at one rate with one seed."""
        ours, *theirs = (
            self.run(system, workload, rate, seed=0)[name]
            for system in (PHASOR, *map(distserve, SPLITS))
        )
        splits = ", ".join(
            f"{n}P/{NUM_INSTANCES - n}D {ours / other - 1:+.0%}"
            for n, other in zip(SPLITS, theirs, strict=True)
        )
        return {"rate": rate, "splits": splits}

    def in_order(self, load: str, rates: Rates, name: str) -> dict[str, Any]:
        """Return a figure of Splitwise, DistServe and Phasor, and Phasor's last change."""
        workload = WORKLOADS[load]
        means = [self.sweep(one, workload, rates, name).mean() for one in NAMES]
        change = self.changes(workload, rates, name, "DistServe")
        return {"holds": means[2] < means[1] < means[0], "means": means, "change": change}

    def overhead(self) -> dict[str, Any]:
        """Return E2E P99 of small requests, and Phasor's / that of the better baseline."""
        means = [self.sweep(name, SMALL, (40,), "e2e_p99_s").mean() for name in NAMES]
        return {"value": means[2] / min(means[:2]), "means": means}

    def fragmentation(self) -> dict[str, Any]:
        """Return peak and mean of the fragmentation in the shock."""
        names = ("Phasor", *BASELINES)
        shares = {
            burst: [[self.fragments(name, burst, seed) for seed in self.seeds] for name in names]
            for burst in BURSTS
        }
        peaks = {
            burst: [float(np.mean([share.max() for share in own])) for own in of_all]
            for burst, of_all in shares.items()
        }
        means = [float(np.mean([share.mean() for share in own])) for own in shares[1]]
        each = ", ".join(
            f"{name} {peak:.2%} / {mean:.2%}"
            for name, peak, mean in zip(names, peaks[1], means, strict=True)
        )
        sweep = "; ".join(
            f"{label}: " + ", ".join(f"{peak:.1%}" for peak in peaks[burst])
            for burst, label in BURSTS.items()
            if burst != 1
        )
        blocks = {"large": LARGE_BLOCKS, "blocks": self.cluster.instance.kv_blocks}
        holds = max(peaks[1][1:]) >= 3 * peaks[1][0]
        return {"holds": holds, "each": each, "sweep": sweep, **blocks}

    def capacity_gain(self, load: str) -> dict[str, Any]:
        """Return capacities relative to DistServe's."""
        workload = WORKLOADS[load]
        phasor, splitwise, base = (
            self.capacities(name, workload) for name in ("Phasor", "Splitwise", "DistServe")
        )
        ours, theirs = seed_values(phasor / base), seed_values(splitwise / base)
        found = {"ours": ours, "theirs": theirs, "base": base.mean()}
        return {"value": float(ours.mean()), **found, "against": self.named("DistServe", workload)}

    def capacity_gains(self, system: str) -> dict[str, Any]:
        """Return gains in capacity over a system, for code, summaries and BurstGPT."""
        gains = [
            float((self.capacities("Phasor", one) / self.capacities(system, one)).mean())
            for one in RATES
        ]
        text = ", ".join(f"{gain:.2f}" for gain in gains)
        found = {"gains": text, "against": self.named(system, PRODUCTION)}
        holds = gains[2] == max(gains) and (system == ONE_SPLIT or max(gains) > min(gains))
        return {"value": min(gains), "holds": holds, **found}

    def loss(self, variant: str, column: str, sign: int) -> dict[str, Any]:
        """Return what each variant loses, and whether this one loses the most.

        Args:
            column: columns of the ablations that start with it.
            sign: 1 where a larger figure is a loss, else -1.
        """
        losses = {
            name: sign * float(np.mean([v for key, v in own.items() if key.startswith(column)]))
            for name, own in self.ablations().items()
        }
        most, second = sorted(losses.values(), reverse=True)[:2]
        text = ", ".join(f"{name} {abs(loss):.2f}" for name, loss in losses.items())
        return {"holds": losses[variant] == most > max(second, sign), "losses": text}

    def loss_in_ttft(self, variant: str) -> dict[str, Any]:
        """Return the loss in TTFT, and that with spread lengths."""
        less, whole = (
            self.values("ttft_p99_s", system, replace(PRODUCTION, length_cv=1.0), 15)
            for system in (ABLATIONS[0], PHASOR)
        )
        return self.loss(variant, "ttft", 1) | {"spread": seed_values(less / whole)}

    def settings(self) -> dict[str, Any]:
        """Return E2E P99 and capacity under other settings, Phasor = 1."""
        table = self.sensitivity()
        text = "; ".join(f"{name} {own[0]:.2f}/{own[2]:.2f}" for name, own in table.items())
        value = np.abs(np.array([*table.values()])[:, ::2] - 1).max()
        return {"value": value, "holds": table["alpha x 0.5"] != table["alpha x 2"], "each": text}

    def joules(self) -> dict[str, Any]:
        """Return joules per output token of Splitwise, DistServe and Phasor."""
        runs = np.array([[self.energy(name, seed) for seed in self.seeds] for name in NAMES])
        worst, middle, best = means = runs[:, :, 0].mean(axis=1)
        changes = [seed_values(runs[2, :, 0] / other - 1) for other in runs[:2, :, 0]]
        rates = ", ".join(f"{rate:.0f}" for rate in runs[:, :, 1].mean(axis=1))
        holds = best < middle < worst and best <= 0.9 * middle
        return {"holds": holds, "means": means, "rates": rates, "changes": changes}

    def starved(self) -> dict[str, Any]:
        """Return starvation with memory-aware routing, and under Phasor without elastic pool."""
        own, other = (
            np.mean([starvation(*self.shock(name, seed)) for seed in self.seeds], axis=0)
            for name in ("memory-aware", "Phasor 3P/3D")
        )
        holds = own[1] >= 900 / 116 * own[0] and own[3] < own[2] and own[4] >= 2
        return {"holds": holds, "own": own, "other": other}

    def instances(self, system: str) -> dict[str, Any]:
        """Return the roles of the instances in the shock, and the requests that moved."""
        run, samples = self.shock(system, 0)
        kinds = ("hand-over after prefill", "live migration")
        moves = [(m.source, m.destination, m.end_s, kinds[m.stages > 1]) for m in run.migrations]
        return {"spans": role_spans(samples), "moves": moves}

    def fragment_lines(self) -> dict[str, Any]:
        """Return the fragmentation over time in percent, by system and size of the burst."""
        points = [
            (label, name, 0.5 * i, 100 * share)
            for burst, label in BURSTS.items()
            for name in NAMES
            for i, share in enumerate(self.fragments(name, burst, 0))
        ]
        return {"points": points}

    def capacity_bars(self) -> dict[str, Any]:
        """Return capacities of all systems and variants."""
        bars = {
            f"{name}, {workload.name}": self.capacities(name, workload).tolist()
            for workload in ABLATION_RATES
            for name in (*NAMES, *(one.name for one in ABLATIONS))
        }
        return {"bars": bars}

    def attainment_lines(self) -> dict[str, Any]:
        """Return the share of requests within the targets, by workload, system and rate."""
        points = [
            (workload.name, name, rate, self.mean("attainment", system, workload, rate))
            for workload, rates in RATES.items()
            for name in NAMES
            for system in [self.system(name, workload)]
            for rate in rates
        ]
        return {"points": points}

    def ablation_table(self) -> dict[str, Any]:
        """Return the figures of each variant."""
        return {"rows": [[name, *row.values()] for name, row in self.ablations().items()]}

    def sensitivity_table(self) -> dict[str, Any]:
        """Return the figures under each setting."""
        return {"rows": [[name, *row] for name, row in self.sensitivity().items()]}

    def split_table(self) -> dict[str, Any]:
        """Return the capacity of each split, by workload."""
        return {"rows": [[w.name, *np.round(self.split_capacities(w), 2)] for w in RATES]}


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


def role_spans(samples: pd.DataFrame) -> list[tuple[int, str, float, float]]:
    """Return for how long instances had their roles: instance, role, start and end in seconds."""
    spans = []
    for number, own in samples.groupby("instance"):
        role, at_s = own["role"].tolist(), own["at_s"].tolist()
        starts = [i for i in range(len(own)) if not i or role[i] != role[i - 1]]
        for first, last in pairwise([*starts, len(own) - 1]):
            spans.append((int(str(number)), role[first], at_s[first], at_s[last]))
    return spans
