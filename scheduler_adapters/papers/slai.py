"""SLAI: median TTFT at high load, capacity, and time between tokens per class (`slai.toml`)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import nan
from typing import Any, Final

import numpy as np

from scheduler_adapters.papers.runs import Experiment, ReproduceConfig, recorded
from scheduler_adapters.policies.prefill_first import PrefillFirst
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.reporting.latency_tables import interval
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.presets import SLAI as TESTBED
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import statistic, token_gaps
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, poisson_arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.traces import read_trace

TRACE = "sharegpt-8k-slai/sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz"
RUN_S = 2100.0
SLO_S = {"median_ttft_s": 0.5, "tbt_p99_paying_s": 0.1, "tbt_p99_free_s": 0.5}
RATES = (0.4, 0.8, 1.0, 1.2, 1.4, 1.6)
PRIORITY_SEEDS = range(100, 130)
"""Few pay, so their median needs many runs: new seeds, their number set before the first run."""

SARATHI: Final = "Sarathi FCFS"
SYSTEMS: dict[str, Callable[[], Policy]] = {
    SARATHI: partial(Sarathi, max_tokens=512),
    "Sarathi SPF": partial(Sarathi, order="spf", max_tokens=512),
    "vLLM prefill-first": partial(PrefillFirst, max_resident=128),
    "SLAI FCFS fixed 10": partial(SLAI, order="fcfs", offset=10),
    "SLAI SPF fixed 10": partial(SLAI, offset=10),
    "SLAI SPF fixed 5": partial(SLAI, offset=5),
    "SLAI": SLAI,
    "SLAI paying first": partial(SLAI, paying_first=True),
}


class SlaiExperiment(Experiment):
    """Runs by system, rate in requests/s, and share of paying users."""

    once = ("capacity", "high_rate")

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        self.instance = Instance.preset(
            TESTBED, max_num_seqs=128, max_tokens=4096, decode_headroom_blocks=0
        )
        self.lengths = trace_lengths()

    def measure(
        self, system: str, rate_per_s: float, paying: float, *, seed: int
    ) -> dict[str, float]:
        """Return median and mean TTFT, and the pooled P99 of the time between tokens; seconds."""
        count = int(rate_per_s * RUN_S * self.config.scale)
        random = np.random.default_rng((seed, LENGTH_STREAM))
        drawn = self.lengths.take(random.integers(0, len(self.lengths), count))
        is_paying = random.random(count) < paying
        requests = replace(
            drawn,
            arrival_s=poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=seed),
            user_class=np.where(is_paying, "paying", "free"),
            tbt_s=np.where(is_paying, SLO_S["tbt_p99_paying_s"], SLO_S["tbt_p99_free_s"]),
        )
        timeline = simulate(requests, SYSTEMS[system](), self.instance, loop="compiled")
        ttft_s = timeline.ttft_s()
        paying_s, free_s = (
            statistic(*token_gaps(timeline.take(rows))).p99 for rows in (is_paying, ~is_paying)
        )
        return {
            "median_ttft_s": float(np.nanmedian(ttft_s)),
            "mean_ttft_s": float(np.nanmean(ttft_s)),
            "median_ttft_paying_s": float(np.nanmedian(ttft_s[is_paying])),
            "tbt_p99_paying_s": paying_s,
            "tbt_p99_free_s": free_s,
        }

    def high_rate(self, median_ttft_s: float) -> float:
        """Return the rate at which Sarathi's median TTFT is that of the paper."""

        def is_met(rate_per_s: float) -> bool:
            ttft_s = self.mean("median_ttft_s", SARATHI, round(rate_per_s, 3), 0.05)
            return ttft_s <= median_ttft_s

        return round(highest_load(is_met, low=1.0, high=2.4, tolerance=0.01), 3)

    def capacity(self, system: str, paying: float) -> float:
        """Return the highest rate that meets the paper's SLO."""

        def is_met(rate_per_s: float) -> bool:
            setting = system, round(rate_per_s, 3), paying
            return all(self.mean(name, *setting) <= most_s for name, most_s in SLO_S.items())

        return highest_load(is_met, low=0.4, high=2.4, tolerance=0.02)

    def high_load(self, share: float, like_s: float) -> dict[str, Any]:
        """Return median TTFT where Sarathi's is `like_s`, and at a fixed rate."""
        rate = self.high_rate(like_s)
        (sarathi, slai), fixed = (
            [self.mean("median_ttft_s", system, at, share) for system in (SARATHI, "SLAI")]
            for at in (rate, 1.6)
        )
        changes = {
            "high": change_text(sarathi, slai, "s"),
            "fixed": change_text(fixed[0], fixed[1], "s"),
        }
        return {"value": slai / sarathi, "rate": rate, **changes}

    def capacity_gain(self, share: float) -> dict[str, Any]:
        """Return the change of the highest rate within the SLO."""
        sarathi, slai = (self.capacity(name, share) for name in (SARATHI, "SLAI"))
        change = change_text(sarathi, slai, "req/s")
        return {"value": gain_of(sarathi, slai), "change": change}

    def gains(self) -> dict[str, Any]:
        """Return the gains in capacity by share of paying users."""
        gains = [self.capacity_gain(share)["value"] for share in (0.05, 0.5, 0.95)]
        text = ", ".join(f"{gain:+.0%}" for gain in gains)
        return {"holds": gains == sorted(gains, reverse=True), "gains": text}

    def worst_gaps(self, system: str) -> dict[str, Any]:
        """Return the longest P99 of the time between tokens, by class."""
        paying_s, free_s = (
            max(self.mean(name, system, rate, 0.05) for rate in RATES[:-1])
            for name in ("tbt_p99_paying_s", "tbt_p99_free_s")
        )
        holds = paying_s <= 0.1 and free_s <= 0.5
        return {"holds": holds, "paying_s": paying_s, "free_s": free_s}

    def early_gaps(self) -> dict[str, Any]:
        """Return the time between tokens of paying users at a moderate rate."""
        return {"value": self.mean("tbt_p99_paying_s", "vLLM prefill-first", 0.8, 0.05)}

    def gap_curves(self) -> dict[str, Any]:
        """Return the time between tokens of free users, by rate."""
        curves = {
            system: [self.mean("tbt_p99_free_s", system, rate, 0.05) for rate in RATES]
            for system in (SARATHI, "SLAI")
        }
        text = "; ".join(f"{n} " + " ".join(f"{s:.2f}" for s in own) for n, own in curves.items())
        return {"holds": [*map(is_rising, curves.values())] == [True, False], "curves": text}

    def shortest_first(self, fcfs: str, spf: str) -> dict[str, Any]:
        """Return median TTFT in arrival order, and with the shortest prompt first."""
        before_s, after_s = (self.mean("median_ttft_s", one, 1.45, 0.05) for one in (fcfs, spf))
        return {"value": after_s - before_s, "before_s": before_s, "after_s": after_s}

    def fixed_offset(self) -> dict[str, Any]:
        """Return TTFT with a fixed and the dynamic offset."""
        (fixed_s, dynamic_s), means_s = (
            [self.mean(name, system, 1.6, 0.05) for system in ("SLAI SPF fixed 5", "SLAI")]
            for name in ("median_ttft_s", "mean_ttft_s")
        )
        found = {"fixed_s": fixed_s, "dynamic_s": dynamic_s, "means_s": means_s}
        return {"value": fixed_s / dynamic_s, **found}

    def paying_first(self) -> dict[str, Any]:
        """Return median TTFT of paying users without and with priority; `value` is the gain."""
        rate = self.high_rate(1.5)
        plain, first = (
            self.values("median_ttft_paying_s", system, rate, 0.05, seeds=PRIORITY_SEEDS)
            for system in ("SLAI", "SLAI paying first")
        )
        change = first.mean() / plain.mean() - 1
        found = {"rate": rate, "plain_s": plain.mean(), "first_s": first.mean(), "change": change}
        return {"value": -change, "bounds": interval((first - plain) / plain.mean()), **found}


def trace_lengths() -> Requests:
    """Return the authors' lengths, or log-normal ones with the same medians and 90% quantiles."""
    trace = recorded(TRACE, read_trace)
    if trace is not None:
        return trace
    random = np.random.default_rng((0, LENGTH_STREAM))
    prompt = random.lognormal(np.log(1730), np.log(5696 / 1730) / 1.2816, 30_000)
    output = random.lognormal(np.log(415), np.log(834 / 415) / 1.2816, 30_000)
    shrink = np.minimum(1.0, 8192 / (prompt + output))
    return make_requests(
        prompt_tokens=np.maximum(1, prompt * shrink).astype(np.int64),
        output_tokens=np.maximum(1, output * shrink).astype(np.int64),
    )


def change_text(before: float, after: float, unit: str) -> str:
    """Return both values, and the relative change where there is one."""
    change = f" ({gain_of(before, after):+.0%})" if before else ""
    return f"{before:.2f} -> {after:.2f} {unit}{change}"


def gain_of(before: float, after: float) -> float:
    """Return the relative change; NaN from 0, as where a run is too short to find a capacity."""
    return after / before - 1 if before else nan


def is_rising(values: Sequence[float]) -> bool:
    """Return whether no value is below the one before it."""
    return all(later >= earlier for earlier, later in pairwise(values))
