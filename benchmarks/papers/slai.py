"""SLAI: median TTFT at high load, capacity, and time between tokens per class (`slai.toml`)."""

from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Any, Final

import numpy as np

from benchmarks.papers.runs import Experiment, ReproduceConfig, SeedValues, kept, recorded
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.presets import SLAI as TESTBED
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import statistic, token_gaps
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.traces import read_trace

TRACE = "sharegpt-8k-slai/sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz"
RUN_S = 2100.0
SLO_S = {"median_ttft_s": 0.5, "tbt_p99_paying_s": 0.1, "tbt_p99_free_s": 0.5}
RATES = (0.4, 0.8, 1.0, 1.2, 1.4, 1.6)
PAYING = (0.05, 0.5, 0.95)

SARATHI: Final = "Sarathi FCFS"


class SlaiExperiment(Experiment):
    """Runs by system, rate in requests/s, and share of paying users."""

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        self.instance = Instance.preset(
            TESTBED, max_num_seqs=128, max_tokens=4096, decode_headroom_blocks=0
        )
        self.lengths = trace_lengths()

    @kept
    def run(self, system: str, *, rate: float, paying: float, seed: int) -> dict[str, float]:
        """Return median and mean TTFT, and the pooled P99 of the time between tokens; seconds."""
        count = int(rate * RUN_S * self.config.scale)
        random = np.random.default_rng((seed, LENGTH_STREAM))
        drawn = self.lengths.take(random.integers(0, len(self.lengths), count))
        is_paying = random.random(count) < paying
        requests = replace(
            drawn,
            arrival_s=arrivals_s(count, rate_per_s=rate, seed=seed),
            user_class=np.where(is_paying, "paying", "free"),
            tbt_s=np.where(is_paying, SLO_S["tbt_p99_paying_s"], SLO_S["tbt_p99_free_s"]),
        )
        timeline = simulate(requests, self.policy(system), self.instance, loop="compiled")
        ttft_s = timeline.ttft_s()
        paying_s, free_s = (
            statistic(*token_gaps(timeline.take(rows))).p99 for rows in (is_paying, ~is_paying)
        )
        return {
            "median_ttft_s": float(np.nanmedian(ttft_s)),
            "mean_ttft_s": float(np.nanmean(ttft_s)),
            "mean_ttft_paying_s": float(np.nanmean(ttft_s[is_paying])),
            "tbt_p99_paying_s": paying_s,
            "tbt_p99_free_s": free_s,
        }

    def values(self, figure: str, system: str, **setting: Any) -> SeedValues:
        """Return a figure of every seed; the capacity once, from the means over the seeds.

        The setting `sarathi_s` stands for the rate at which Sarathi has this median TTFT.
        """
        if figure == "capacity":
            return SeedValues.of([self.capacity(system, **setting)])
        if sarathi_s := setting.pop("sarathi_s", None):
            setting.setdefault("rate", self.high_rate(sarathi_s))
        return super().values(figure, system, **setting)

    def words(self, sarathi_s: float | None = None, **rest: Any) -> dict[str, Any]:
        """Return the rate at which Sarathi has a median TTFT."""
        return {"rate": self.high_rate(sarathi_s)} if sarathi_s else {}

    @kept
    def high_rate(self, sarathi_s: float) -> float:
        """Return the rate at which Sarathi's median TTFT is that of the paper."""
        search = {"low": 1.0, "high": 2.4, "tolerance": 0.01}
        return self.rate_at(sarathi_s, "median_ttft_s", SARATHI, paying=0.05, search=search)

    @kept
    def capacity(self, system: str, paying: float) -> float:
        """Return the highest rate that meets the paper's SLO."""

        def is_met(rate: float) -> bool:
            setting = {"rate": round(rate, 3), "paying": paying}
            return all(self.mean(one, system, **setting) <= most for one, most in SLO_S.items())

        return highest_load(is_met, low=0.4, high=2.4, tolerance=0.02)

    def gains(self) -> dict[str, Any]:
        """Return the gains in capacity by share of paying users."""
        pairs = [self.pair("capacity", SARATHI, "SLAI", paying=share) for share in PAYING]
        gains = [pair["value"].average for pair in pairs]
        text = ", ".join(f"{gain:+.0%}" for gain in gains)
        return {"holds": gains == sorted(gains, reverse=True), "gains": text}

    def worst_gaps(self, system: str) -> dict[str, Any]:
        """Return the longest P99 of the time between tokens, by class."""
        paying_s, free_s = (
            self.sweep(name, system, rates=RATES[:-1], paying=0.05).mean(axis=1).max()
            for name in ("tbt_p99_paying_s", "tbt_p99_free_s")
        )
        return {"holds": paying_s <= 0.1 and free_s <= 0.5, "paying_s": paying_s, "free_s": free_s}

    def gap_curves(self, **setting: Any) -> dict[str, Any]:
        """Return the time between tokens of free users, by rate."""
        setting |= {"rates": RATES, "paying": 0.05}
        curves = {
            system: self.sweep("tbt_p99_free_s", system, **setting).mean(axis=1)
            for system in (SARATHI, "SLAI")
        }
        text = "; ".join(f"{n} " + " ".join(f"{s:.2f}" for s in own) for n, own in curves.items())
        turns = [[up for up, _ in groupby(np.diff(own) > 0)] for own in curves.values()]
        return {"holds": turns == [[True], [True, False, True]], "curves": text}


@cache
def trace_lengths() -> Requests:
    """Return the authors' lengths, or log-normal ones with the same medians and 90% quantiles."""
    if (trace := recorded(TRACE, read_trace)) is not None:
        return trace
    random = np.random.default_rng((0, LENGTH_STREAM))
    prompt = random.lognormal(np.log(1730), np.log(5696 / 1730) / 1.2816, 30_000)
    output = random.lognormal(np.log(415), np.log(834 / 415) / 1.2816, 30_000)
    shrink = np.minimum(1.0, 8192 / (prompt + output))
    return make_requests(
        prompt_tokens=np.maximum(1, prompt * shrink).astype(np.int64),
        output_tokens=np.maximum(1, output * shrink).astype(np.int64),
    )
