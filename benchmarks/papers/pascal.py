"""PASCAL: tail TTFT by reasoning length, SLO violations and migration (`pascal.toml`)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks.papers.runs import FIRST_SEED, Experiment, ReproduceConfig, SeedValues, kept
from scheduler_adapters.placement import load_placement
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric, HostLink
from scheduler_adapters.simulator.observers import LoadRecorder
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import statistic, summarize
from scheduler_adapters.timeline.qoe import first_answer_tail, qoe, violation_fraction
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, arrivals_s
from scheduler_adapters.workload.mixes import draw_lengths
from scheduler_adapters.workload.requests import make_requests

_MODEL: Final = "deepseek-r1-distill-qwen-32b"
NUM_INSTANCES: Final = 8
NUM_REQUESTS: Final = 5000
CHATS: Final = ("alpaca-eval", "arena-hard")
LOADS: Final = {"low": 0.6, "medium": 0.8, "high": 1.0}
"""Shares of the high rate."""
MOST_BLOCKED: Final = 0.2
"""Largest share of the time with blocked requests under FCFS at the high rate."""

REASONING, ANSWERING = "reasoning", "answering"
_PHASE_REQUESTS: Final = 300
PHASE_LENGTHS: Final = tuple(range(128, 2049, 128))
PHASE_RATE: Final = 4.0
"""Requests per second of the figures; the paper does not give its own."""

_PICKS: Final[Mapping[str, Callable[..., Any]]] = {"min": min, "max": max}
FCFS, RR, PASCAL, STAYS = "fcfs", "round-robin", "pascal", "pascal, NoMigration"


class PascalExperiment(Experiment):
    """Runs on eight instances, by system, mix, and load by name or rate in requests per second."""

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        self.count = max(50, int(NUM_REQUESTS * config.scale))
        self.instance = Instance.preset(f"{_MODEL}@h100-96g", host=HostLink.of_model(_MODEL))
        self.phase = OnePhase(config, self.instance)

    @kept
    def run(self, system: str, *, mix: str, rate: float, seed: int) -> dict[str, Any]:
        """Return the summary of a run, and more; `tail_s` is by the least tokens of each bin."""
        arrival_s = arrivals_s(self.count, rate_per_s=rate, seed=seed)
        recorders = [LoadRecorder() for _ in range(NUM_INSTANCES)] if system == FCFS else []
        run = simulate_cluster(
            replace(draw_lengths(mix, self.count, seed=seed), arrival_s=arrival_s),
            load_placement(**self.systems[system]["placement"]),
            lambda: self.policy(system),
            [self.instance] * NUM_INSTANCES,
            fabric=Fabric.of_model(_MODEL),
            observers=lambda number: recorders[number : number + 1],
        )
        timeline = run.timeline
        tail = first_answer_tail(timeline)
        return summarize(timeline).flat() | {
            "reasoning_p50_s": statistic(timeline.reasoned_s() - timeline.requests.arrival_s).p50,
            "migration_p99_s": statistic(
                np.array([move.downtime_s for move in run.migrations])
            ).p99,
            "blocked": blocked_fraction(recorders, arrival_s[-1]),
            "tail_s": {one["reasoning_tokens"]: one["first_answer_s"] for one in tail},
        }

    def rate(self, mix: str, load: str) -> float:
        """Return the requests per second of a load."""
        return round(self.high_rate(mix) * LOADS[load], 3)

    def values(self, figure: str, system: str, **setting: Any) -> SeedValues:
        """Return a figure of every seed, at high load unless the setting has a load or a rate.

        The setting `blocked_s` stands for the rate at which NoMigration has this P99 of blocking.
        """
        load = setting.pop("load", "high")
        if blocked_s := setting.pop("blocked_s", None):
            setting["rate"] = self.blocking_rate(setting["mix"], blocked_s)
        if "rate" not in setting:
            setting["rate"] = self.rate(setting["mix"], load)
        return super().values(figure, system, **setting)

    def words(
        self, mix: str | None = None, blocked_s: float | None = None, **rest: Any
    ) -> dict[str, Any]:
        """Return the workload, at high load or at the rate of `blocked_s`."""
        if blocked_s and mix:
            return {"at": f"{mix}, {self.blocking_rate(mix, blocked_s):.1f} req/s"}
        return {"at": f"{mix}, high load ({self.high_rate(mix):.1f} req/s)"} if mix else {}

    @kept
    def high_rate(self, mix: str) -> float:
        """Return the rate up to which FCFS has blocked requests no more than 20% of the time."""
        fluid_per_s = self.fluid_rate(mix)
        search = {"low": 0.75 * fluid_per_s, "high": 1.1 * fluid_per_s, "tolerance": 0.03}
        found = self.rate_at(MOST_BLOCKED, "blocked", FCFS, mix=mix, most_seeds=2, search=search)
        return round(found, 2)

    @kept
    def blocking_rate(self, mix: str, blocked_s: float) -> float:
        """Return the rate at which P99 of blocking without migration is that of the paper."""
        low = self.high_rate(mix)
        search = {"low": low, "high": 1.5 * low, "tolerance": 0.01}
        return self.rate_at(blocked_s, "blocking_s.p99", STAYS, mix=mix, search=search)

    def fluid_rate(self, mix: str) -> float:
        """Return requests per second that fill the KV memory, if arrivals were even."""
        lengths = draw_lengths(mix, NUM_REQUESTS, seed=FIRST_SEED)
        prompt, output = lengths.prompt_tokens, lengths.output_tokens
        kv_tokens = self.instance.kv_blocks * self.instance.block_tokens
        step_s = self.instance.latency.step_s(1, kv_tokens, ())
        held = float((output * (prompt + output / 2)).mean())  # KV tokens, summed over steps
        return NUM_INSTANCES * kv_tokens / (held * step_s)

    def tails(self, mix: str, system: str) -> list[dict[int, float]]:
        """Return the tail TTFT at high load by bin, one dictionary per seed."""
        rate = self.rate(mix, "high")
        runs = [self.run(system, mix=mix, rate=rate, seed=seed) for seed in self.seeds]
        return [{int(low): tail_s for low, tail_s in run["tail_s"].items()} for run in runs]

    def changes(self, mix: str, base: str) -> dict[int, tuple[SeedValues, float]]:
        """Return by bin PASCAL's change of the tail by seed, and the mean change in seconds.

        A bin that fewer than half of the seeds have is left out.
        """
        pairs: dict[int, list[tuple[float, float]]] = {}
        tails = (self.tails(mix, system) for system in (PASCAL, base))
        for ours, theirs in zip(*tails, strict=True):
            for tokens in sorted(ours.keys() & theirs.keys()):
                pairs.setdefault(tokens, []).append((ours[tokens], theirs[tokens]))
        figures = {tokens: np.array(pairs[tokens]).T for tokens in sorted(pairs)}
        return {
            tokens: (SeedValues.of(ours / theirs - 1), float((ours - theirs).mean()))
            for tokens, (ours, theirs) in figures.items()
            if 2 * len(ours) >= len(self.seeds)
        }

    def best_bin(self, mix: str, base: str, pick: str = "min") -> dict[str, Any]:
        """Return PASCAL's best (or by `max` the worst) change of the tail at high load."""
        tokens, (change, seconds) = _PICKS[pick](
            self.changes(mix, base).items(), key=lambda own: own[1][0].average
        )
        words = f"{change:+.0%} ({seconds:+.1f} s) from {tokens} reasoning tokens"
        return {"value": change, "tokens": tokens, "words": words}

    def extreme(self, base: str, pick: str) -> dict[str, Any]:
        """Return the best or the worst change of the tail at high load over the chat mixes."""
        found = {mix: self.best_bin(mix, base, pick) for mix in CHATS}
        words = "; ".join(f"{mix}: {one['words']}" for mix, one in found.items())
        chosen = _PICKS[pick](found.values(), key=lambda own: own["value"].average)
        return {"value": chosen["value"], "words": words}

    def violations(self, mix: str) -> dict[str, Any]:
        """Return the share of violations of PASCAL, FCFS and round-robin at each load."""
        shares = {
            load: [
                self.mean("qoe_violations", one, mix=mix, load=load) for one in (PASCAL, FCFS, RR)
            ]
            for load in LOADS
        }
        text = "; ".join(f"{n}: " + ", ".join(f"{v:.2%}" for v in own) for n, own in shares.items())
        return {"holds": all(own[0] <= min(own) for own in shares.values()), "shares": text}

    def slowdown(self, policy: str, length: int, rate: float = PHASE_RATE) -> dict[str, Any]:
        """Return the slowdown at a reasoning length."""
        return {"value": self.phase.slowdowns(policy, rate)[length]}

    def answers(self, rate: float = PHASE_RATE) -> dict[str, Any]:
        """Return the share of answers within the SLO, of unlimited memory, round-robin and FCFS."""
        ideal, round_robin, fcfs = (self.phase.attainment(n, rate).average for n in ("", RR, FCFS))
        found = {"ideal": ideal, "round_robin": round_robin, "fcfs": fcfs}
        return {"holds": round_robin >= ideal - 0.1 > fcfs, **found}


def blocked_fraction(recorders: list[LoadRecorder], until_s: float) -> float:
    """Return the share of the time, mean over instances, with a request that holds no KV memory.

    Such a request is queued for its first blocks, or offloaded. NaN without recorders.
    """
    blocked_s = 0.0
    for recorder in recorders:
        curve = recorder.curve()
        spent_s = np.diff(np.minimum(curve.end_s, until_s), prepend=0.0)
        blocked_s += float(spent_s[curve.num_waiting > 0].sum())
    return blocked_s / (len(recorders) * until_s) if recorders else np.nan


class OnePhase(Experiment):
    """One phase of 300 requests on one instance, against the same with unlimited KV memory.

    The memory holds half of the largest use without a limit.
    """

    def __init__(self, config: ReproduceConfig, instance: Instance) -> None:
        super().__init__(replace(config, resume=None))  # timelines are not kept in a file
        self.instance = replace(instance, max_num_seqs=_PHASE_REQUESTS)

    @kept
    def run(self, phase: str, *, rate: float, seed: int) -> dict[str, Timeline]:
        """Return the timelines by policy; "" is FCFS with unlimited memory."""
        random = np.random.default_rng((seed, LENGTH_STREAM))
        lengths = random.choice(PHASE_LENGTHS, _PHASE_REQUESTS)
        requests = make_requests(
            prompt_tokens=np.full(_PHASE_REQUESTS, 128),
            output_tokens=lengths + (phase == REASONING),
            reasoning_tokens=lengths * (phase == REASONING),
            arrival_s=arrivals_s(_PHASE_REQUESTS, rate_per_s=rate, seed=seed),
        )
        recorder = LoadRecorder()
        unlimited = replace(self.instance, kv_blocks=10**9)
        oracle = simulate(
            requests, self.policy(FCFS), unlimited, loop="python", observers=[recorder]
        )
        half = replace(self.instance, kv_blocks=int(recorder.curve().used_blocks.max()) // 2)
        limited = {name: simulate(requests, self.policy(name), half) for name in (FCFS, RR)}
        return {"": oracle, **limited}

    def slowdowns(self, policy: str, rate: float = PHASE_RATE) -> dict[int, SeedValues]:
        """Return mean first answer / that with unlimited memory, by reasoning length."""
        ratios = []
        for seed in self.seeds:
            timelines = self.run(REASONING, rate=rate, seed=seed)
            first_s, ideal_s = (
                timelines[name].first_answer_s - timelines[name].requests.arrival_s
                for name in (policy, "")
            )
            masks = [timelines[""].requests.reasoning_tokens == length for length in PHASE_LENGTHS]
            ratios.append([first_s[rows].mean() / ideal_s[rows].mean() for rows in masks])
        return dict(zip(PHASE_LENGTHS, SeedValues.of(np.array(ratios).T), strict=True))

    def attainment(self, policy: str, rate: float = PHASE_RATE) -> SeedValues:
        """Return the share of answers that meet the SLO, counted from .25 s after arrival."""
        runs = [self.run(ANSWERING, rate=rate, seed=seed)[policy] for seed in self.seeds]
        shares = [1 - violation_fraction(qoe(timeline, ttfat_target_s=0.25)) for timeline in runs]
        return SeedValues.of(shares)
