"""Phasor against Splitwise and DistServe: tails, capacity, ablations, energy (`phasor.toml`)."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import pandas as pd

from benchmarks.papers import phasor_cluster as bed
from benchmarks.papers.runs import Experiment, ReproduceConfig, SeedValues, kept
from scheduler_adapters.simulator.cluster import ClusterRun
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.timeline.latency_metrics import statistic, token_gaps

LOADS: Final = (bed.CODE.name, bed.SUMMARIES.name, bed.PRODUCTION.name)
WINDOW_S: Final = 60.0
MOST_CLIENTS: Final = 4096


class PhasorExperiment(Experiment):
    """Runs by system, workload (`load`) and rate; searches for capacity; runs through a shock."""

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        self.cluster = bed.GpuCluster(config.model)

    @kept
    def run(self, system: str, *, load: str, rate: float, seed: int) -> dict[str, float]:
        """Return tails in seconds, joules per output token, watts, and tokens per second."""
        workload, count = bed.WORKLOADS[load], max(2, int(rate * WINDOW_S * self.config.scale))
        requests = workload.requests(count, rate, seed)
        meters = [
            bed.PowerMeter(self.cluster.instance.max_num_seqs) for _ in range(bed.NUM_INSTANCES)
        ]
        one = bed.SYSTEMS[system]
        timeline = self.cluster.run(
            one,
            self.cluster.placement(one, workload),
            requests,
            observers=lambda number: meters[number : number + 1],
        ).timeline
        end_s, tokens = float(timeline.finished_s.max()), int(requests.output_tokens.sum())
        joules = sum(meter.joules(end_s) for meter in meters)
        pace = bed.pace_s(timeline)
        return {
            "ttft_p99_s": bed.p99(timeline.ttft_s()),
            "tpot_mean_s": float(pace.mean()),
            "tbt_p99_s": statistic(*token_gaps(timeline)).p99,
            "e2e_p99_s": bed.p99(timeline.e2e_s()),
            "joules": joules / tokens,
            "watts": joules / end_s,
            "tokens_per_s": tokens / end_s,
        }

    def values(self, figure: str, system: str, **setting: Any) -> SeedValues:
        """Return a figure of every seed; a capacity is searched."""
        if figure == "capacity":
            load = setting["load"]
            return SeedValues.of([self.capacity(system, load, seed) for seed in self.seeds])
        return super().values(figure, system, **setting)

    @kept
    def capacity(self, system: str, load: str, seed: int) -> float:
        """Return clients per GPU with which both targets are met."""
        scale = self.config.scale
        most = max(16, int(MOST_CLIENTS * scale))

        @cache
        def is_met(clients: int) -> bool:
            return self.cluster.meets_slo(bed.SYSTEMS[system], bed.WORKLOADS[load], clients, seed)

        low = min(most, 64)
        while low > 1 and not is_met(low):
            low //= 2
        limits = {"low": low, "high": 2 * low, "tolerance": min(0.5, 0.05 / scale), "most": most}
        found = highest_load(lambda count: is_met(int(count)), **limits, grows=True, whole=True)
        return found / bed.NUM_INSTANCES

    def shock(
        self, system: str, seed: int, pieces: bed.Pieces = bed.SHOCK
    ) -> tuple[ClusterRun, pd.DataFrame]:
        """Return a run through a shock, and samples of its instances."""
        one = bed.SYSTEMS[system]
        sampled = bed.Sampled(self.cluster.placement(one, bed.PRODUCTION))
        requests = bed.PRODUCTION.shock(pieces, seed)
        count = max(20, int(10 * self.config.scale * len(requests)))  # whole from a tenth on
        requests = requests.take(np.arange(len(requests)) < count)
        return self.cluster.run(one, sampled, requests), sampled.samples()

    @kept
    def fragmented(self, system: str, seed: int) -> list[float]:
        """Return peak and mean of the fragmentation over 500 s with a plateau."""
        blocks = self.cluster.instance.kv_blocks
        found = bed.blocked_fraction(self.shock(system, seed, bed.PLATEAU)[1], blocks)
        return [float(found.max()), float(found.mean())]

    def fragments(self, system: str) -> dict[str, Any]:
        """Return peak and mean of the fragmentation by seed."""
        peaks, means = SeedValues.of([self.fragmented(system, seed) for seed in self.seeds]).T
        return {"peak": peaks, "mean": means}

    def capacity_gains(self, base: str) -> dict[str, Any]:
        """Return gains in capacity over a system by seed, and the last one / the next highest."""
        *others, last = gains = [self.gain(load, base) for load in LOADS]
        words = ", ".join(f"{gain:.2f}" for gain in gains)
        return {"value": last / max(others, key=np.mean), "gains": words}

    def mean_gain(self, base: str) -> dict[str, Any]:
        """Return by seed the gain in capacity over a system, mean over all workloads."""
        each = [self.gain(load, base) for load in bed.WORKLOADS]
        return {"value": SeedValues.of(np.mean(each, axis=0))}

    def gain(self, load: str, base: str) -> SeedValues:
        """Return the gain in capacity over a system by seed."""
        ratio: SeedValues = self.pair("capacity", base, "Phasor", load=load)["ratio"]
        return ratio

    def sensitivity(
        self, base: str, systems: Sequence[str], cells: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return mean figures / those of a system; a cell is a figure in a setting."""
        rows = {
            one: [self.pair(base=base, system=one, **cell)["ratio"] for cell in cells]
            for one in systems
        }
        each = [f"{name} {' / '.join(f'{one:.2f}' for one in own)}" for name, own in rows.items()]
        # The means alone: a wide interval would hold any number.
        value = [one.average for own in rows.values() for one in own]
        return {"value": value, "each": "; ".join(each)}

    @kept
    def starvation(self, system: str, seed: int) -> list[float]:
        """Return median TTFT in ms and mean decode batch, before and in the shock."""
        run, samples = self.shock(system, seed)
        timeline = run.timeline
        arrival_s = timeline.requests.arrival_s
        medians_ms = [
            1e3 * float(np.median(timeline.ttft_s()[rows])) if rows.any() else 0.0
            for rows in (arrival_s < 90, (arrival_s >= 90) & (arrival_s < 120))
        ]
        decoders = samples[samples["role"] == "decode"]
        batches = [
            decoders["decoding"][decoders["at_s"].between(start_s, end_s, inclusive="left")].mean()
            for start_s, end_s in ((30.0, 90.0), (95.0, 120.0))
        ]
        return [*medians_ms, *np.nan_to_num(batches).tolist()]

    @kept
    def longest_queue(self, system: str, seed: int) -> float:
        """Return the longest queue of a prefill instance, mean over the plateau (Fig. 7)."""
        samples = self.shock(system, seed, bed.PLATEAU)[1]
        in_plateau = samples["at_s"].between(300, 420, inclusive="left")
        queues = samples[(samples["role"] == "prefill") & in_plateau].groupby("at_s")["queued"]
        return float(queues.max().mean())

    def skew(self, system: str, base: str) -> dict[str, Any]:
        """Return the longest queues of two systems by seed, and their quotient."""
        own, theirs = (
            SeedValues.of([self.longest_queue(one, seed) for seed in self.seeds])
            for one in (system, base)
        )
        return {"own": own, "theirs": theirs, "value": own / theirs}

    def starved(self, system: str) -> dict[str, Any]:
        """Return starvation in the shock, as `starvation` measures it, and its growth."""
        each = np.array([self.starvation(system, seed) for seed in self.seeds]).T
        with np.errstate(divide="ignore", invalid="ignore"):
            growth, batch = SeedValues.of(each[1] / each[0]), SeedValues.of(each[3] / each[2])
        return {"own": each.mean(axis=1), "growth": growth, "batch": batch}
