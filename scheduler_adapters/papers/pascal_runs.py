"""Systems, rates and runs of the PASCAL figures: on eight instances, and on one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final

import numpy as np

from scheduler_adapters.commands.reproduce import ReproduceConfig
from scheduler_adapters.placement import Placement
from scheduler_adapters.placements.least_kv import LeastKv
from scheduler_adapters.placements.pascal import PascalPlacement
from scheduler_adapters.policies.fcfs import OffloadingFCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster import ClusterRun, simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.instance_config import UNLIMITED_BLOCKS
from scheduler_adapters.simulator.links import Fabric, HostLink
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.simulator.observers import LoadRecorder
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.first_answer_tail import first_answer_tail
from scheduler_adapters.timeline.latency_metrics import statistic, summarize
from scheduler_adapters.timeline.qoe import qoe, violation_fraction
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, poisson_arrivals_s
from scheduler_adapters.workload.mixes import draw_lengths
from scheduler_adapters.workload.requests import Requests, make_requests

_MODEL: Final = "deepseek-r1-distill-qwen-32b"
NUM_INSTANCES: Final = 8
NUM_REQUESTS: Final = 5000
FIRST_SEED: Final = 100
"""What was settled with figures at hand was settled on seeds 0 and 1."""
CHATS: Final = ("alpaca-eval", "arena-hard")
LOADS: Final = {"low": 0.6, "medium": 0.8, "high": 1.0}
"""Shares of the high rate."""
MOST_BLOCKED: Final = 0.2
"""Share of the time, up to which FCFS may have blocked requests at the high rate."""

FCFS, RR, PASCAL = "fcfs", "round-robin", "pascal"
STAYS, FOLLOWS = "pascal, NoMigration", "pascal, NonAdaptive"
SYSTEMS: Final[dict[str, tuple[Callable[[], Placement], Callable[[], Policy]]]] = {
    FCFS: (LeastKv, OffloadingFCFS),
    RR: (LeastKv, partial(RoundRobin, offload=True)),
    PASCAL: (PascalPlacement, partial(Pascal, offload=True)),
    STAYS: (partial(PascalPlacement, migration="never"), partial(Pascal, offload=True)),
    FOLLOWS: (partial(PascalPlacement, migration="always"), partial(Pascal, offload=True)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PascalRun:
    """Figures of one run; seconds."""

    violations: float
    """Share of the requests with a QoE below .95."""
    tokens_per_s: float
    blocking_p99_s: float
    reasoning_p50_s: float
    """From arrival to the end of reasoning."""
    e2e_p50_s: float
    e2e_p99_s: float
    migration_p99_s: float
    """NaN where none migrated."""
    blocked_fraction: float
    """Of the time until the last arrival, mean over the instances; NaN where it was not watched."""
    tail_s: Mapping[int, float] = field(default_factory=dict)
    """By the least reasoning tokens of each bin."""


class PascalExperiment:
    """Runs of the systems on eight instances, each made once."""

    def __init__(self, config: ReproduceConfig) -> None:
        self.config = config
        self.count = max(50, int(NUM_REQUESTS * config.scale))
        self.instance = Instance.preset(f"{_MODEL}@h100-96g", host=HostLink.of_model(_MODEL))
        self.measure = cache(self._measure)
        self.high_rate = cache(self._high_rate)

    def runs(self, mix: str, system: str, load: str = "high") -> list[PascalRun]:
        """Return one run per seed."""
        rate_per_s = round(self.high_rate(mix) * LOADS[load], 3)
        seeds = range(FIRST_SEED, FIRST_SEED + self.config.num_seeds)
        return [self.measure(mix, system, rate_per_s, seed) for seed in seeds]

    def mean(self, name: str, mix: str, system: str, load: str = "high") -> float:
        """Return the mean over the seeds of a field of `PascalRun`."""
        return float(np.mean([getattr(run, name) for run in self.runs(mix, system, load)]))

    def requests(self, mix: str, rate_per_s: float, seed: int) -> Requests:
        """Return requests of a mix that arrive at this rate."""
        arrival_s = poisson_arrivals_s(self.count, rate_per_s=rate_per_s, seed=seed)
        return replace(draw_lengths(mix, self.count, seed=seed), arrival_s=arrival_s)

    def simulate(
        self, requests: Requests, system: str, recorders: list[LoadRecorder] | None = None
    ) -> ClusterRun:
        """Serve requests; `recorders` gets one for each instance."""
        placement, policy = SYSTEMS[system]

        def observers(number: int) -> list[LoadRecorder]:
            if recorders is None:
                return []
            recorders.append(LoadRecorder())
            return recorders[-1:]

        return simulate_cluster(
            requests,
            placement(),
            policy,
            [self.instance] * NUM_INSTANCES,
            fabric=Fabric.of_model(_MODEL),
            observers=observers,
        )

    def _measure(self, mix: str, system: str, rate_per_s: float, seed: int) -> PascalRun:
        recorders: list[LoadRecorder] | None = [] if system == FCFS else None
        run = self.simulate(self.requests(mix, rate_per_s, seed), system, recorders)
        timeline, summary = run.timeline, summarize(run.timeline)
        arrival_s = timeline.requests.arrival_s
        blocked = np.nan if recorders is None else blocked_fraction(recorders, arrival_s[-1])
        return PascalRun(
            violations=summary.qoe_violations,
            tokens_per_s=summary.output_tokens_per_s,
            blocking_p99_s=summary.blocking_s.p99,
            reasoning_p50_s=statistic(timeline.reasoned_s() - arrival_s).p50,
            e2e_p50_s=summary.e2e_s.p50,
            e2e_p99_s=summary.e2e_s.p99,
            migration_p99_s=statistic(np.array([one.downtime_s for one in run.migrations])).p99,
            blocked_fraction=blocked,
            tail_s={
                one["reasoning_tokens"]: one["first_answer_s"]
                for one in first_answer_tail(timeline)
            },
        )

    def _high_rate(self, mix: str) -> float:
        """Return the rate up to which FCFS has blocked requests no more than 20% of the time."""
        seeds = range(FIRST_SEED, FIRST_SEED + min(2, self.config.num_seeds))

        def is_met(rate_per_s: float) -> bool:
            runs = [self.measure(mix, FCFS, round(rate_per_s, 3), seed) for seed in seeds]
            return float(np.mean([run.blocked_fraction for run in runs])) <= MOST_BLOCKED

        fluid_per_s = self.fluid_rate(mix)
        low, high = 0.75 * fluid_per_s, 1.1 * fluid_per_s
        found = highest_load(is_met, low=low, high=high, tolerance=0.03)
        return round(found or low, 2)

    def fluid_rate(self, mix: str) -> float:
        """Return requests per second that fill the KV memory, if arrivals were even."""
        lengths = draw_lengths(mix, NUM_REQUESTS, seed=FIRST_SEED)
        prompt, output = lengths.prompt_tokens, lengths.output_tokens
        kv_tokens = self.instance.kv_blocks * self.instance.block_tokens
        step_s = self.instance.latency.step_s(1, kv_tokens, ())
        held = float((output * (prompt + output / 2)).mean())  # KV tokens, summed over steps
        return NUM_INSTANCES * kv_tokens / (held * step_s)


def blocked_fraction(recorders: list[LoadRecorder], until_s: float) -> float:
    """Return the share of the time, mean over instances, with a request that holds no KV memory.

    Such a request waits for its first blocks, or has been offloaded and not come back.
    """
    blocked_s = 0.0
    for recorder in recorders:
        curve = recorder.curve()
        spent_s = np.diff(np.minimum(curve.end_s, until_s), prepend=0.0)
        blocked_s += float(spent_s[curve.num_waiting > 0].sum())
    return blocked_s / (len(recorders) * until_s)


REASONING, ANSWERING = "reasoning", "answering"
_PHASE_REQUESTS: Final = 300
_PHASE_PROMPT: Final = 128
PHASE_LENGTHS: Final = tuple(range(128, 2049, 128))
PHASE_RATES: Final = (2.0, 4.0, 8.0, 16.0)
"""Requests per second; the paper does not say. The figures are of the second one."""
TTFAT_TARGET_S: Final = 0.25
PHASE_POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    FCFS: OffloadingFCFS,
    RR: partial(RoundRobin, offload=True),
}


class OneInstance:
    """One phase of 300 requests on one instance, against the same with unlimited KV memory.

    The memory holds half of what is in use at most where there is no limit.
    """

    def __init__(self, experiment: PascalExperiment) -> None:
        config = experiment.config
        self.seeds = range(FIRST_SEED, FIRST_SEED + config.num_seeds)
        self.instance = replace(experiment.instance, max_num_seqs=_PHASE_REQUESTS)
        self.timelines = cache(self._timelines)

    def _timelines(self, phase: str, rate_per_s: float, seed: int) -> dict[str, Timeline]:
        """Return the timelines by policy; "" is FCFS with unlimited memory."""
        random = np.random.default_rng((seed, LENGTH_STREAM))
        lengths = random.choice(PHASE_LENGTHS, _PHASE_REQUESTS)
        requests = make_requests(
            prompt_tokens=np.full(_PHASE_REQUESTS, _PHASE_PROMPT),
            output_tokens=lengths + (phase == REASONING),
            reasoning_tokens=lengths * (phase == REASONING),
            arrival_s=poisson_arrivals_s(_PHASE_REQUESTS, rate_per_s=rate_per_s, seed=seed),
        )
        recorder = LoadRecorder()
        unlimited = replace(self.instance, kv_blocks=UNLIMITED_BLOCKS)
        oracle = simulate(
            requests, OffloadingFCFS(), unlimited, loop="python", observers=[recorder]
        )
        half = replace(self.instance, kv_blocks=int(recorder.curve().used_blocks.max()) // 2)
        limited = {name: simulate(requests, make(), half) for name, make in PHASE_POLICIES.items()}
        return {"": oracle, **limited}

    def slowdowns(self, policy: str, rate_per_s: float = PHASE_RATES[1]) -> dict[int, list[float]]:
        """Return mean first answer / that with unlimited memory, by reasoning length and seed."""
        found: dict[int, list[float]] = {length: [] for length in PHASE_LENGTHS}
        for seed in self.seeds:
            timelines = self.timelines(REASONING, rate_per_s, seed)
            latency_s, ideal_s = (
                timelines[name].first_answer_s - timelines[name].requests.arrival_s
                for name in (policy, "")
            )
            lengths = timelines[""].requests.reasoning_tokens
            for length, ratios in found.items():
                rows = lengths == length
                ratios.append(float(latency_s[rows].mean() / ideal_s[rows].mean()))
        return found

    def attainment(self, policy: str, rate_per_s: float = PHASE_RATES[1]) -> list[float]:
        """Return the share of answers that meet the SLO, counted from .25 s after arrival."""
        timelines = [self.timelines(ANSWERING, rate_per_s, seed)[policy] for seed in self.seeds]
        values = [qoe(timeline, ttfat_target_s=TTFAT_TARGET_S) for timeline in timelines]
        return [1 - violation_fraction(value) for value in values]
