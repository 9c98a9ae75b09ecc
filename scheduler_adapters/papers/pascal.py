"""PASCAL: tail TTFT by reasoning length, SLO violations, migration, and the slowdown of one phase.

DeepSeek-R1-Distill-Qwen-32B on eight H100 of 96 GB (73,000 tokens of KV each), 100 Gbit/s between
them and 50 GB/s to host memory; Poisson arrivals. The paper's lengths are not public: here they are
fits (`workload/mixes.py`). Its rates are not given. The high rate is the highest one at which,
under FCFS, requests without KV memory, waiting or offloaded, exist 20% of the time; medium and low
are .8 and .6 of it. Only runs of FCFS set these rates. This reading, the length of the runs and the
arrivals on one instance were settled on other seeds than those of the figures. TTFT is to the first
answering token; a bin's change is the mean over the seeds, with its 95% interval.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from scheduler_adapters.papers.page import bars_section, instances_section, lines_section
from scheduler_adapters.papers.rows import PaperFigure, row
from scheduler_adapters.papers.runs import Experiment, ReproduceConfig, SeedValues, seed_values
from scheduler_adapters.placement import Placement
from scheduler_adapters.placements.least_kv import LeastKv
from scheduler_adapters.placements.pascal import PascalPlacement
from scheduler_adapters.policies.fcfs import OffloadingFCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policy import Policy
from scheduler_adapters.reporting.page import ReportTable, Section
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
from scheduler_adapters.workload.mixes import HALF_HEAVY, draw_lengths
from scheduler_adapters.workload.requests import make_requests

_MODEL: Final = "deepseek-r1-distill-qwen-32b"
NUM_INSTANCES: Final = 8
NUM_REQUESTS: Final = 5000
FIRST_SEED: Final = 100
"""Seeds 0 and 1 were used for all that was settled with figures at hand."""
CHATS: Final = ("alpaca-eval", "arena-hard")
ABLATED: Final = CHATS[0]
"""The mix of the variants without migration, and without its adaptation."""
LOADS: Final = {"low": 0.6, "medium": 0.8, "high": 1.0}
"""Shares of the high rate."""
MOST_BLOCKED: Final = 0.2
"""Largest share of the time with blocked requests under FCFS at the high rate."""
_SHOWN_S: Final = 60.0

FCFS, RR, PASCAL = "fcfs", "round-robin", "pascal"
STAYS, FOLLOWS = "pascal, NoMigration", "pascal, NonAdaptive"
SYSTEMS: Final[dict[str, tuple[Callable[[], Placement], Callable[[], Policy]]]] = {
    FCFS: (LeastKv, OffloadingFCFS),
    RR: (LeastKv, partial(RoundRobin, offload=True)),
    PASCAL: (PascalPlacement, partial(Pascal, offload=True)),
    STAYS: (partial(PascalPlacement, migration="never"), partial(Pascal, offload=True)),
    FOLLOWS: (partial(PascalPlacement, migration="always"), partial(Pascal, offload=True)),
}


class PascalExperiment(Experiment):
    """Runs on eight instances, by mix, system, and load: a name or requests per second."""

    once = ("high_rate",)

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config, first_seed=FIRST_SEED)
        self.count = max(50, int(NUM_REQUESTS * config.scale))
        self.instance = Instance.preset(f"{_MODEL}@h100-96g", host=HostLink.of_model(_MODEL))
        self.phase = OnePhase(config, self.instance)

    def simulate(
        self, mix: str, system: str, rate_per_s: float, seed: int
    ) -> tuple[ClusterRun, float]:
        """Serve requests of a mix; returns the run, and the share of the time with blocked ones."""
        arrival_s = poisson_arrivals_s(self.count, rate_per_s=rate_per_s, seed=seed)
        requests = replace(draw_lengths(mix, self.count, seed=seed), arrival_s=arrival_s)
        placement, policy = SYSTEMS[system]
        recorders = [LoadRecorder() for _ in range(NUM_INSTANCES)] if system == FCFS else []
        run = simulate_cluster(
            requests,
            placement(),
            policy,
            [self.instance] * NUM_INSTANCES,
            fabric=Fabric.of_model(_MODEL),
            observers=lambda number: recorders[number : number + 1],
        )
        return run, blocked_fraction(recorders, arrival_s[-1])

    def measure(
        self, mix: str, system: str, load: str | float = "high", *, seed: int
    ) -> dict[str, Any]:
        """Return the summary of a run, and more; `tail_s` is by the least tokens of each bin."""
        if isinstance(load, str):
            load = round(self.high_rate(mix) * LOADS[load], 3)
        run, blocked = self.simulate(mix, system, load, seed)
        timeline = run.timeline
        reasoning_s = timeline.reasoned_s() - timeline.requests.arrival_s
        moving_s = np.array([one.downtime_s for one in run.migrations])
        return summarize(timeline).flat() | {
            "reasoning_p50_s": statistic(reasoning_s).p50,
            "migration_p99_s": statistic(moving_s).p99,
            "blocked": blocked,
            "tail_s": {
                one["reasoning_tokens"]: one["first_answer_s"]
                for one in first_answer_tail(timeline)
            },
        }

    def high_rate(self, mix: str) -> float:
        """Return the rate up to which FCFS has blocked requests no more than 20% of the time."""
        seeds = self.seeds[:2]

        def is_met(rate_per_s: float) -> bool:
            rate = round(rate_per_s, 3)
            return self.mean("blocked", mix, FCFS, rate, seeds=seeds) <= MOST_BLOCKED

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

    def at_high_load(self, mix: str) -> str:
        """Return the workload at high load, in words."""
        return f"{mix}, high load ({self.high_rate(mix):.1f} req/s)"

    def tails(self, mix: str, system: str) -> list[dict[int, float]]:
        """Return the tail TTFT at high load by bin, one dictionary per seed."""
        return [self.run(mix, system, seed=seed)["tail_s"] for seed in self.seeds]

    def extreme(
        self, mix: str, baseline: str, pick: Callable[..., int] = min
    ) -> tuple[float, int, str]:
        """Return the bin with the best (or by `max` the worst) change of PASCAL's tail.

        A bin that fewer than half of the seeds have is left out.

        Returns:
            mean change at high load, least reasoning tokens of the bin, and both in words.
        """
        pairs: dict[int, list[tuple[float, float]]] = {}
        tails = (self.tails(mix, system) for system in (PASCAL, baseline))
        for ours, theirs in zip(*tails, strict=True):
            for tokens in ours.keys() & theirs.keys():
                pairs.setdefault(tokens, []).append((ours[tokens], theirs[tokens]))
        changes = {
            tokens: seed_values([ours / theirs - 1 for ours, theirs in pairs[tokens]])
            for tokens in sorted(pairs)
            if 2 * len(pairs[tokens]) >= len(self.seeds)
        }
        tokens = pick(changes, key=lambda tokens: float(changes[tokens].mean()))
        seconds = np.mean([ours - theirs for ours, theirs in pairs[tokens]])
        words = f"{changes[tokens]:+.0%} ({seconds:+.1f} s) from {tokens} reasoning tokens"
        return float(changes[tokens].mean()), tokens, words


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


REASONING, ANSWERING = "reasoning", "answering"
_PHASE_REQUESTS: Final = 300
PHASE_LENGTHS: Final = tuple(range(128, 2049, 128))
PHASE_RATE: Final = 4.0
"""Requests per second of the figures; the paper does not give its own."""
_OTHER_RATES: Final = (2.0, 8.0, 16.0)


class OnePhase(Experiment):
    """One phase of 300 requests on one instance, against the same with unlimited KV memory.

    The memory holds half of the largest use without a limit.
    """

    def __init__(self, config: ReproduceConfig, instance: Instance) -> None:
        super().__init__(config, first_seed=FIRST_SEED)
        self.instance = replace(instance, max_num_seqs=_PHASE_REQUESTS)

    def measure(self, phase: str, rate_per_s: float, *, seed: int) -> dict[str, Timeline]:
        """Return the timelines by policy; "" is FCFS with unlimited memory."""
        random = np.random.default_rng((seed, LENGTH_STREAM))
        lengths = random.choice(PHASE_LENGTHS, _PHASE_REQUESTS)
        requests = make_requests(
            prompt_tokens=np.full(_PHASE_REQUESTS, 128),
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
        limited = {name: simulate(requests, SYSTEMS[name][1](), half) for name in (FCFS, RR)}
        return {"": oracle, **limited}

    def slowdowns(self, policy: str, rate_per_s: float = PHASE_RATE) -> dict[int, SeedValues]:
        """Return mean first answer / that with unlimited memory, by reasoning length."""
        ratios = []
        for seed in self.seeds:
            timelines = self.run(REASONING, rate_per_s, seed=seed)
            first_s, ideal_s = (
                timelines[name].first_answer_s - timelines[name].requests.arrival_s
                for name in (policy, "")
            )
            masks = [timelines[""].requests.reasoning_tokens == length for length in PHASE_LENGTHS]
            ratios.append([first_s[rows].mean() / ideal_s[rows].mean() for rows in masks])
        return dict(zip(PHASE_LENGTHS, seed_values(np.array(ratios).T), strict=True))

    def attainment(self, policy: str, rate_per_s: float = PHASE_RATE) -> SeedValues:
        """Return the share of answers that meet the SLO, counted from .25 s after arrival."""
        runs = [self.run(ANSWERING, rate_per_s, seed=seed)[policy] for seed in self.seeds]
        shares = [1 - violation_fraction(qoe(timeline, ttfat_target_s=0.25)) for timeline in runs]
        return seed_values(shares)


def tail_rows(e: PascalExperiment) -> Iterator[PaperFigure]:
    """Yield the best and the worst bins of tail TTFT."""
    for mix, baseline, paper, least in (
        (CHATS[0], FCFS, "up to -61% (43.2 s)", 0.45),
        (CHATS[1], FCFS, "up to -72% (64.2 s)", 0.45),
        (CHATS[0], RR, "up to -33% (89.9 s)", 0.15),
        (CHATS[1], RR, "up to -29% (72.7 s)", 0.15),
    ):
        change, _, words = e.extreme(mix, baseline)
        yield row(
            f"tail TTFT, best bin | {e.at_high_load(mix)} | {baseline}",
            paper,
            words,
            change <= -least,
            f"-{least:.0%} or better",
        )
    for baseline, paper in ((FCFS, "+6.1% (13.3 s)"), (RR, "+9.2% (8.3 s)")):
        worst = {mix: e.extreme(mix, baseline, max) for mix in CHATS}
        yield row(
            f"tail TTFT, worst bin | both chat mixes, high load | {baseline}",
            paper,
            "; ".join(f"{mix}: {words}" for mix, (_, _, words) in worst.items()),
            max(change for change, *_ in worst.values()) <= 0.15,
            "no bin worse than +15%",
        )


def load_rows(e: PascalExperiment) -> Iterator[PaperFigure]:
    """Yield violations, throughput and the time of migrations."""
    for mix in CHATS:
        shares = {
            load: [e.mean("qoe_violations", mix, system, load) for system in (PASCAL, FCFS, RR)]
            for load in LOADS
        }
        yield row(
            "requests that violate the SLO (PASCAL, FCFS, round-robin) | "
            f"{mix}, three rates | FCFS and round-robin",
            "lower or equal at all rates",
            "; ".join(f"{n}: " + ", ".join(f"{v:.2%}" for v in own) for n, own in shares.items()),
            all(own[0] <= min(own) for own in shares.values()),
            "mean over the seeds not above either, at each rate",
        )
    gaps = {}
    for mix in CHATS:
        ours, *others = (
            e.mean("output_tokens_per_s", mix, system) for system in (PASCAL, FCFS, RR)
        )
        for baseline, theirs in zip((FCFS, RR), others, strict=True):
            gaps[f"{mix}, {baseline}"] = ours / theirs - 1
    yield row(
        "generated tokens / makespan | both chat mixes, high load | FCFS and round-robin",
        "within 3%",
        "; ".join(f"{name}: {gap:+.1%}" for name, gap in gaps.items()),
        max(map(abs, gaps.values())) <= 0.05,
        "within 5%",
    )
    for mix, paper in zip(CHATS, ("0.14 s", "0.25 s"), strict=True):
        moved_s = e.values("migration_p99_s", mix, PASCAL)
        yield row(
            "P99 of the time in which a request's KV migrates | "
            f"{e.at_high_load(mix)} | PASCAL alone",
            paper,
            f"{moved_s:.2f s}",
            0.05 <= moved_s.mean() <= 0.5,
            "0.05 s to 0.5 s",
        )


def ablation_rows(e: PascalExperiment) -> Iterator[PaperFigure]:
    """Yield PASCAL without migration, and without its adaptation."""
    at = e.at_high_load(ABLATED)
    theirs, ours = (e.values("blocking_s.p99", ABLATED, system) for system in (STAYS, PASCAL))
    violations, reasoning_s = (
        [e.mean(name, ABLATED, system) for system in (STAYS, PASCAL)]
        for name in ("qoe_violations", "reasoning_p50_s")
    )
    best, tokens, _ = e.extreme(ABLATED, STAYS)
    elsewhere = [
        f"{e.mean('blocking_s.p99', mix, STAYS, load):.2f} and "
        f"{e.mean('blocking_s.p99', mix, PASCAL, load):.2f} s with {mix} at {load} load"
        for mix, load in ((ABLATED, "medium"), (CHATS[1], "high"))
    ]
    yield row(
        f"P99 blocking latency | {at} | {STAYS}",
        "27.4 s without migration, about 0 with it",
        f"{theirs:.2f s} without, {ours:.2f s} with",
        theirs.mean() >= 10 * ours.mean(),
        "10 times as long without migration",
        note=f"violations {violations[0]:.2%} without, {violations[1]:.2%} with (paper: worse "
        f"without); tail TTFT with migration {best:+.0%} from {tokens} tokens (paper: better); "
        f"median time to the end of reasoning {reasoning_s[0]:.1f} and {reasoning_s[1]:.1f} s "
        f"(paper: equal); blocking {', '.join(elsewhere)}",
    )
    theirs, ours = (
        seed_values(100 * e.values("qoe_violations", ABLATED, system))
        for system in (FOLLOWS, PASCAL)
    )
    yield row(
        f"requests that violate the SLO | {at} | {FOLLOWS}",
        "7.45%, 0.69% with adaptive migration",
        f"{theirs:.2f%}, {ours:.2f%} with it",
        theirs.mean() >= 3 * ours.mean(),
        "3 times as many or more",
    )
    median, tail = (
        e.values(name, ABLATED, FOLLOWS) / e.values(name, ABLATED, PASCAL) - 1
        for name in ("e2e_s.p50", "e2e_s.p99")
    )
    yield row(
        f"median E2E | {at} | {FOLLOWS}",
        "+20.1% (tail +9.7%)",
        f"{100 * median:+.1f%}",
        median.mean() >= 0.05,
        "+5% or more",
        note=f"P99 of E2E {tail.mean():+.1%}",
    )


def heavy_row(e: PascalExperiment) -> PaperFigure:
    """Return the best bins where half of the requests reason long."""
    change, _, words = e.extreme(HALF_HEAVY, RR)
    chats = [e.extreme(mix, RR)[0] for mix in CHATS]
    worst = [f"{name} {e.extreme(HALF_HEAVY, name, max)[0]:+.0%}" for name in (FCFS, RR)]
    return row(
        "tail TTFT, best bin, where half of the requests reason long | "
        f"{e.at_high_load(HALF_HEAVY)} | {RR}",
        "up to -13.9%, less than in the chat mixes (FCFS: up to -70%)",
        f"{words}; FCFS: {e.extreme(HALF_HEAVY, FCFS)[2]}",
        change > min(chats),
        "smaller gain over round-robin than in the chat mixes",
        note=f"chat mixes {', '.join(f'{change:+.0%}' for change in chats)}; worst bin "
        f"{', '.join(worst)} (paper +6.8%, +7.7%)",
    )


def phase_rows(phase: OnePhase) -> Iterator[PaperFigure]:
    """Yield the slowdown of each phase on one instance."""
    for policy, length, other, least, paper in (
        (FCFS, 128, 2048, 3.0, "5.14x"),
        (RR, 2048, 128, 1.3, "1.75x"),
    ):
        found = phase.slowdowns(policy)
        mean, beyond = found[length].mean(), found[other].mean()
        by_rate = [
            f"{phase.slowdowns(policy, rate)[length].mean():.2f}x at {rate:g}"
            for rate in _OTHER_RATES
        ]
        yield row(
            "mean TTFT / that with unlimited KV memory | "
            f"one instance, {length} reasoning tokens, 4 req/s | {policy}",
            paper,
            f"{found[length]:.2fx}",
            mean >= least and mean > beyond,
            f"{least:g}x or more, and more than at {other} tokens",
            note=f"{beyond:.2f}x at {other} tokens; with other rates {', '.join(by_rate)} req/s "
            "(the paper's is not given)",
        )
    ideal, round_robin, fcfs = (phase.attainment(name).mean() for name in ("", RR, FCFS))
    by_rate = [
        f"{phase.attainment(RR, rate).mean():.0%} and "
        f"{phase.attainment(FCFS, rate).mean():.0%} at {rate:g}"
        for rate in _OTHER_RATES
    ]
    yield row(
        "answers that meet the SLO, counted from 0.25 s after their phase begins | "
        "one instance, answering only, 4 req/s | round-robin and FCFS",
        "round-robin near unlimited memory, FCFS not",
        f"{ideal:.0%} with unlimited memory, {round_robin:.0%} round-robin, {fcfs:.0%} FCFS",
        round_robin >= ideal - 0.1 > fcfs,
        "round-robin within 10 points of unlimited memory, FCFS not",
        note=f"with other rates {', '.join(by_rate)} req/s",
    )


def reproduce(config: ReproduceConfig) -> tuple[list[PaperFigure], list[Section]]:
    """Measure the rows of the paper's evaluation, and draw figures like the paper's."""
    e = PascalExperiment(config)
    tables = tail_rows(e), load_rows(e), ablation_rows(e), [heavy_row(e)], phase_rows(e.phase)
    return [one for table in tables for one in table], list(sections(e))


def sections(experiment: PascalExperiment) -> Iterator[Section]:
    """Yield the figures like the paper's, and a timeline of the instances."""
    said = (
        f"{NUM_INSTANCES} instances, {experiment.count:,} requests, "
        f"{len(experiment.seeds)} seeds, means."
    )
    systems = (FCFS, RR, PASCAL)
    tails = {
        (mix, system): experiment.tails(mix, system)
        for mix in (*CHATS, HALF_HEAVY)
        for system in systems
    }
    yield lines_section(
        "Tail TTFT by reasoning length",
        [
            (*name, tokens, float(np.mean([tail[tokens] for tail in tail_of])))
            for name, tail_of in tails.items()
            for tokens in sorted(set.intersection(*map(set, tail_of)))
        ],
        ("reasoning tokens (least of bin)", "tail TTFT (s)"),
        f"High load; percentiles by the number of requests in a bin. {said}",
        "tail_ttft",
    )
    yield lines_section(
        "SLO violations against the rate",
        [
            (
                mix,
                system,
                experiment.high_rate(mix) * share,
                100 * experiment.mean("qoe_violations", mix, system, load),
            )
            for mix in CHATS
            for system in systems
            for load, share in LOADS.items()
        ],
        ("requests per second", "requests with QoE < .95 (%)"),
        f"Low, medium and high load. {said}",
        "violations",
    )
    yield bars_section(
        "Blocking latency",
        {
            system: experiment.values("blocking_s.p99", ABLATED, system).tolist()
            for system in (PASCAL, STAYS, FOLLOWS)
        },
        "P99 of blocking_s (s)",
        f"{experiment.at_high_load(ABLATED)}; whiskers: 95% interval. {said}",
        "blocking",
    )
    yield _phase_section(experiment.phase)
    yield _moves_section(experiment)


def _phase_section(phase: OnePhase) -> Section:
    shares = [
        [rate, *(float(phase.attainment(name, rate).mean()) for name in ("", RR, FCFS))]
        for rate in sorted((PHASE_RATE, *_OTHER_RATES))
    ]
    slowdowns = lines_section(
        "One instance with half of the KV memory that is needed",
        [
            ("", policy, length, float(values.mean()))
            for policy in (FCFS, RR)
            for length, values in phase.slowdowns(policy).items()
        ],
        ("reasoning tokens", "mean TTFT / with unlimited memory"),
        f"300 requests, prompts of 128 tokens, {PHASE_RATE:g} req/s.",
        "one_instance",
    )
    return replace(
        slowdowns,
        text="Reasoning only (figure), and answers that meet the SLO (table).",
        table=ReportTable(columns=["req/s", "unlimited memory", RR, FCFS], rows=shares),
    )


def _moves_section(experiment: PascalExperiment) -> Section:
    run, _ = experiment.simulate(ABLATED, PASCAL, experiment.high_rate(ABLATED), 0)
    end_s = float(run.timeline.requests.arrival_s[-1])
    begin_s = max(0.0, end_s - _SHOWN_S)
    return instances_section(
        "Instances and the requests that move between them",
        [(number, "both", begin_s, end_s) for number in range(NUM_INSTANCES)],
        [
            (one.source, one.destination, one.end_s, "migration")
            for one in run.migrations
            if begin_s <= one.end_s <= end_s
        ],
        f"PASCAL, {experiment.at_high_load(ABLATED)}, seed 0; lines: requests that moved to answer "
        "elsewhere, from source to destination, in the last minute of arrivals.",
        "migrations",
        writes_moves=True,
    )
