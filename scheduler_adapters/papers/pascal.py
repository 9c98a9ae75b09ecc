"""PASCAL: tail TTFT by reasoning length, SLO violations, migration, and what one phase suffers.

DeepSeek-R1-Distill-Qwen-32B on eight H100 of 96 GB (73,000 tokens of KV each), 100 Gbit/s between
them and 50 GB/s to host memory; Poisson arrivals. The paper's lengths are not public: here they are
fits (`workload/mixes.py`). Its rates are not given: the high one is that up to which FCFS has
requests without KV memory, waiting or offloaded, no more than 20% of the time, medium and low are
.8 and .6 of it; only FCFS is looked at. This reading, the length of the runs and the arrivals on
one instance were settled on other seeds than those of the figures. TTFT is to the first answering
token; a bin's change is the mean over the seeds, with its 95% interval.
"""

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pandas as pd

from scheduler_adapters.commands.reproduce import PaperFigure, ReproduceConfig
from scheduler_adapters.papers.pascal_runs import (
    CHATS,
    FCFS,
    FOLLOWS,
    LOADS,
    NUM_INSTANCES,
    PASCAL,
    PHASE_LENGTHS,
    PHASE_RATES,
    RR,
    STAYS,
    OneInstance,
    PascalExperiment,
)
from scheduler_adapters.reporting.figures import capacity_figure, instances_figure, series_figure
from scheduler_adapters.reporting.latency_tables import capacity_table, series_table, with_interval
from scheduler_adapters.reporting.page import ReportTable, Section
from scheduler_adapters.workload.mixes import HALF_HEAVY

ABLATED = CHATS[0]
"""The mix of the variants without migration, and without its adaptation."""
_PAPER_BEST = {
    (CHATS[0], FCFS): "up to -61% (43.2 s)",
    (CHATS[1], FCFS): "up to -72% (64.2 s)",
    (CHATS[0], RR): "up to -33% (89.9 s)",
    (CHATS[1], RR): "up to -29% (72.7 s)",
}
_LEAST_GAIN = {FCFS: 0.45, RR: 0.15}
_MOST_LOSS = 0.15
_PAPER_WORST = {FCFS: "+6.1% (13.3 s)", RR: "+9.2% (8.3 s)"}
_SECONDS, _PERCENT = ("{:.2f} s", "{:.2f}"), ("{:.2f}%", "{:.2f}")
"""Forms of a mean and of the ends of its interval."""
_PAPER_MOVE_S = dict(zip(CHATS, ("0.14 s", "0.25 s"), strict=True))

experiment_of = cache(PascalExperiment)


def figures(config: ReproduceConfig) -> list[PaperFigure]:
    """The rows of the paper's evaluation."""
    experiment = experiment_of(config)
    phase = OneInstance(experiment)
    return [
        *(_best_row(experiment, mix, baseline) for mix, baseline in _PAPER_BEST),
        *(_worst_row(experiment, baseline) for baseline in (FCFS, RR)),
        *(_violations_row(experiment, mix) for mix in CHATS),
        _throughput_row(experiment),
        *(_migration_row(experiment, mix) for mix in CHATS),
        _no_migration_row(experiment),
        *_non_adaptive_rows(experiment),
        _heavy_row(experiment),
        *_slowdown_rows(phase),
        _attainment_row(phase),
    ]


def changes(experiment: PascalExperiment, mix: str, baseline: str) -> dict[int, list[float]]:
    """Return PASCAL's tail / a baseline's - 1 at high load, by bin, of the seeds that have it.

    A bin that fewer than half of the seeds have is left out.
    """
    found: dict[int, list[float]] = {}
    pairs = list(zip(experiment.runs(mix, PASCAL), experiment.runs(mix, baseline), strict=True))
    for ours, theirs in pairs:
        for tokens in ours.tail_s.keys() & theirs.tail_s.keys():
            change = ours.tail_s[tokens] / theirs.tail_s[tokens] - 1
            found.setdefault(tokens, []).append(change)
    return {
        tokens: found[tokens] for tokens in sorted(found) if 2 * len(found[tokens]) >= len(pairs)
    }


def extreme(found: Mapping[int, list[float]], *, is_best: bool) -> tuple[int, float]:
    """Return the bin with the least (best) or the greatest mean change, and that mean."""
    means = {tokens: float(np.mean(values)) for tokens, values in found.items()}
    tokens = (min if is_best else max)(means, key=lambda tokens: means[tokens])
    return tokens, means[tokens]


def _bin_text(experiment: PascalExperiment, mix: str, baseline: str, tokens: int) -> str:
    values = changes(experiment, mix, baseline)[tokens]
    seconds = [
        ours.tail_s[tokens] - theirs.tail_s[tokens]
        for ours, theirs in zip(
            experiment.runs(mix, PASCAL), experiment.runs(mix, baseline), strict=True
        )
        if tokens in ours.tail_s and tokens in theirs.tail_s
    ]
    change = with_interval(values, "{:+.0%}")
    return f"{change} ({np.mean(seconds):+.1f} s) from {tokens} reasoning tokens"


def _workload(experiment: PascalExperiment, mix: str) -> str:
    return f"{mix}, high load ({experiment.high_rate(mix):.1f} req/s)"


def _best_row(experiment: PascalExperiment, mix: str, baseline: str) -> PaperFigure:
    tokens, mean = extreme(changes(experiment, mix, baseline), is_best=True)
    return PaperFigure(
        metric="tail TTFT, best bin",
        workload=_workload(experiment, mix),
        baseline=baseline,
        paper=_PAPER_BEST[mix, baseline],
        ours=_bin_text(experiment, mix, baseline, tokens),
        reproduced=mean <= -_LEAST_GAIN[baseline],
        criterion=f"-{_LEAST_GAIN[baseline]:.0%} or better",
    )


def _worst_row(experiment: PascalExperiment, baseline: str) -> PaperFigure:
    worst = {mix: extreme(changes(experiment, mix, baseline), is_best=False) for mix in CHATS}
    texts = [f"{mix}: {_bin_text(experiment, mix, baseline, worst[mix][0])}" for mix in CHATS]
    return PaperFigure(
        metric="tail TTFT, worst bin",
        workload="both chat mixes, high load",
        baseline=baseline,
        paper=_PAPER_WORST[baseline],
        ours="; ".join(texts),
        reproduced=max(mean for _, mean in worst.values()) <= _MOST_LOSS,
        criterion=f"no bin worse than {_MOST_LOSS:+.0%}",
    )


def _violations_row(experiment: PascalExperiment, mix: str) -> PaperFigure:
    shares = {
        (load, system): experiment.mean("violations", mix, system, load)
        for load in LOADS
        for system in (PASCAL, FCFS, RR)
    }
    texts = [
        f"{load}: " + ", ".join(f"{shares[load, one]:.2%}" for one in (PASCAL, FCFS, RR))
        for load in LOADS
    ]
    return PaperFigure(
        metric="requests that violate the SLO (PASCAL, FCFS, round-robin)",
        workload=f"{mix}, three rates",
        baseline="FCFS and round-robin",
        paper="lower or equal at all rates",
        ours="; ".join(texts),
        reproduced=all(
            shares[load, PASCAL] <= shares[load, other] for load in LOADS for other in (FCFS, RR)
        ),
        criterion="mean over the seeds not above either, at each rate",
    )


def _throughput_row(experiment: PascalExperiment) -> PaperFigure:
    gaps = {
        (mix, baseline): experiment.mean("tokens_per_s", mix, PASCAL)
        / experiment.mean("tokens_per_s", mix, baseline)
        - 1
        for mix in CHATS
        for baseline in (FCFS, RR)
    }
    return PaperFigure(
        metric="generated tokens / makespan",
        workload="both chat mixes, high load",
        baseline="FCFS and round-robin",
        paper="within 3%",
        ours="; ".join(f"{mix}, {base}: {gap:+.1%}" for (mix, base), gap in gaps.items()),
        reproduced=max(map(abs, gaps.values())) <= 0.05,
        criterion="within 5%",
    )


def _migration_row(experiment: PascalExperiment, mix: str) -> PaperFigure:
    values = [run.migration_p99_s for run in experiment.runs(mix, PASCAL)]
    return PaperFigure(
        metric="P99 of the time in which a request's KV migrates",
        workload=_workload(experiment, mix),
        baseline="PASCAL alone",
        paper=_PAPER_MOVE_S[mix],
        ours=with_interval(values, *_SECONDS),
        reproduced=0.05 <= float(np.mean(values)) <= 0.5,
        criterion="0.05 s to 0.5 s",
    )


def _no_migration_row(experiment: PascalExperiment) -> PaperFigure:
    ours, theirs = (
        [run.blocking_p99_s for run in experiment.runs(ABLATED, system)]
        for system in (PASCAL, STAYS)
    )
    violations, reasoning_s = (
        [experiment.mean(name, ABLATED, system) for system in (STAYS, PASCAL)]
        for name in ("violations", "reasoning_p50_s")
    )
    tokens, best = extreme(changes(experiment, ABLATED, STAYS), is_best=True)
    elsewhere = [
        f"{experiment.mean('blocking_p99_s', mix, STAYS, load):.2f} and "
        f"{experiment.mean('blocking_p99_s', mix, PASCAL, load):.2f} s with {mix} at {load} load"
        for mix, load in ((ABLATED, "medium"), (CHATS[1], "high"))
    ]
    return PaperFigure(
        metric="P99 blocking latency",
        workload=_workload(experiment, ABLATED),
        baseline=STAYS,
        paper="27.4 s without migration, about 0 with it",
        ours=f"{with_interval(theirs, *_SECONDS)} without, {with_interval(ours, *_SECONDS)} with",
        reproduced=float(np.mean(theirs)) >= 10 * float(np.mean(ours)),
        criterion="10 times as long without migration",
        note=f"violations {violations[0]:.2%} without, {violations[1]:.2%} with (paper: worse "
        f"without); tail TTFT with migration {best:+.0%} from {tokens} tokens (paper: better); "
        f"median time to the end of reasoning {reasoning_s[0]:.1f} and {reasoning_s[1]:.1f} s "
        f"(paper: equal); blocking {', '.join(elsewhere)}",
    )


def _non_adaptive_rows(experiment: PascalExperiment) -> Iterator[PaperFigure]:
    ours, theirs = experiment.runs(ABLATED, PASCAL), experiment.runs(ABLATED, FOLLOWS)
    shares = [float(np.mean([run.violations for run in runs])) for runs in (theirs, ours)]
    yield PaperFigure(
        metric="requests that violate the SLO",
        workload=_workload(experiment, ABLATED),
        baseline=FOLLOWS,
        paper="7.45%, 0.69% with adaptive migration",
        ours=f"{with_interval([100 * run.violations for run in theirs], *_PERCENT)}, "
        f"{with_interval([100 * run.violations for run in ours], *_PERCENT)} with it",
        reproduced=shares[0] >= 3 * shares[1],
        criterion="3 times as many or more",
    )
    medians, tails = (
        [getattr(b, name) / getattr(a, name) - 1 for a, b in zip(ours, theirs, strict=True)]
        for name in ("e2e_p50_s", "e2e_p99_s")
    )
    yield PaperFigure(
        metric="median E2E",
        workload=_workload(experiment, ABLATED),
        baseline=FOLLOWS,
        paper="+20.1% (tail +9.7%)",
        ours=with_interval([100 * value for value in medians], "{:+.1f}%", "{:+.1f}"),
        reproduced=float(np.mean(medians)) >= 0.05,
        criterion="+5% or more",
        note=f"P99 of E2E {np.mean(tails):+.1%}",
    )


def _heavy_row(experiment: PascalExperiment) -> PaperFigure:
    best = {mix: extreme(changes(experiment, mix, RR), is_best=True)[1] for mix in CHATS}
    tokens, heavy = extreme(changes(experiment, HALF_HEAVY, RR), is_best=True)
    fcfs_tokens, _ = extreme(changes(experiment, HALF_HEAVY, FCFS), is_best=True)
    worst = [
        f"{baseline} {extreme(changes(experiment, HALF_HEAVY, baseline), is_best=False)[1]:+.0%}"
        for baseline in (FCFS, RR)
    ]
    return PaperFigure(
        metric="tail TTFT, best bin, where half of the requests reason long",
        workload=_workload(experiment, HALF_HEAVY),
        baseline=RR,
        paper="up to -13.9%, less than in the chat mixes (FCFS: up to -70%)",
        ours=f"{_bin_text(experiment, HALF_HEAVY, RR, tokens)}; "
        f"FCFS: {_bin_text(experiment, HALF_HEAVY, FCFS, fcfs_tokens)}",
        reproduced=heavy > min(best.values()),
        criterion="smaller gain over round-robin than in the chat mixes",
        note=f"chat mixes {', '.join(f'{change:+.0%}' for change in best.values())}; worst bin "
        f"{', '.join(worst)} (paper +6.8%, +7.7%)",
    )


def _slowdown_rows(phase: OneInstance) -> Iterator[PaperFigure]:
    for policy, at, least, paper in (
        (FCFS, PHASE_LENGTHS[0], 3.0, "5.14x"),
        (RR, PHASE_LENGTHS[-1], 1.3, "1.75x"),
    ):
        found = phase.slowdowns(policy)
        means = {length: float(np.mean(values)) for length, values in found.items()}
        other = PHASE_LENGTHS[-1] if at == PHASE_LENGTHS[0] else PHASE_LENGTHS[0]
        by_rate = [
            f"{np.mean(phase.slowdowns(policy, rate)[at]):.2f}x at {rate:g}"
            for rate in PHASE_RATES
            if rate != PHASE_RATES[1]
        ]
        yield PaperFigure(
            metric="mean TTFT / that with unlimited KV memory",
            workload=f"one instance, {at} reasoning tokens, {PHASE_RATES[1]:g} req/s",
            baseline=policy,
            paper=paper,
            ours=with_interval(found[at], "{:.2f}x", "{:.2f}"),
            reproduced=means[at] >= least and means[at] > means[other],
            criterion=f"{least:g}x or more, and more than at {other} tokens",
            note=f"{means[other]:.2f}x at {other} tokens; with other rates {', '.join(by_rate)} "
            "req/s (the paper's is not given)",
        )


def _attainment_row(phase: OneInstance) -> PaperFigure:
    shares = {name: phase.attainment(name) for name in ("", RR, FCFS)}
    ideal, round_robin, fcfs = (float(np.mean(values)) for values in shares.values())
    by_rate = [
        f"{np.mean(phase.attainment(RR, rate)):.0%} and {np.mean(phase.attainment(FCFS, rate)):.0%}"
        f" at {rate:g}"
        for rate in PHASE_RATES
        if rate != PHASE_RATES[1]
    ]
    return PaperFigure(
        metric="answers that meet the SLO, counted from 0.25 s after their phase begins",
        workload=f"one instance, answering only, {PHASE_RATES[1]:g} req/s",
        baseline="round-robin and FCFS",
        paper="round-robin near unlimited memory, FCFS not",
        ours=f"{ideal:.0%} with unlimited memory, {round_robin:.0%} round-robin, {fcfs:.0%} FCFS",
        reproduced=round_robin >= ideal - 0.1 and fcfs < ideal - 0.1,
        criterion="round-robin within 10 points of unlimited memory, FCFS not",
        note=f"with other rates {', '.join(by_rate)} req/s",
    )


def sections(config: ReproduceConfig) -> list[Section]:
    """The figures like the paper's, and a timeline of the instances."""
    experiment = experiment_of(config)
    said = (
        f"{NUM_INSTANCES} instances, {experiment.count:,} requests, "
        f"{config.num_seeds} seeds, means."
    )
    return [
        _tail_section(experiment, said),
        _violations_section(experiment, said),
        _blocking_section(experiment, said),
        _phase_section(OneInstance(experiment)),
        _instances_section(experiment),
    ]


def _tail_section(experiment: PascalExperiment, said: str) -> Section:
    rows = []
    for mix in (*CHATS, HALF_HEAVY):
        for system in (FCFS, RR, PASCAL):
            tails = [run.tail_s for run in experiment.runs(mix, system)]
            for tokens in sorted(set.intersection(*(set(tail) for tail in tails))):
                mean_s = float(np.mean([tail[tokens] for tail in tails]))
                rows.append((mix, system, tokens, mean_s))
    table = series_table(rows)
    return Section(
        heading="Tail TTFT by reasoning length",
        figure=series_figure(table, "reasoning tokens (least of bin)", "tail TTFT (s)"),
        caption=f"High load; percentiles by the number of requests in a bin. {said}",
        drawn=("tail_ttft", table),
    )


def _violations_section(experiment: PascalExperiment, said: str) -> Section:
    rows = [
        (mix, system, experiment.high_rate(mix) * share, 100 * experiment.mean(*what))
        for mix in CHATS
        for system in (FCFS, RR, PASCAL)
        for load, share in LOADS.items()
        for what in [("violations", mix, system, load)]
    ]
    table = series_table(rows)
    return Section(
        heading="SLO violations against the rate",
        figure=series_figure(table, "requests per second", "requests with QoE < .95 (%)"),
        caption=f"Low, medium and high load. {said}",
        drawn=("violations", table),
    )


def _blocking_section(experiment: PascalExperiment, said: str) -> Section:
    found = {
        system: [run.blocking_p99_s for run in experiment.runs(ABLATED, system)]
        for system in (PASCAL, STAYS, FOLLOWS)
    }
    table = capacity_table(found)
    return Section(
        heading="Blocking latency",
        figure=capacity_figure(table, "P99 of blocking_s (s)"),
        caption=f"{_workload(experiment, ABLATED)}; whiskers: 95% interval. {said}",
        drawn=("blocking", table),
    )


def _phase_section(phase: OneInstance) -> Section:
    rows = [
        ("", policy, length, float(np.mean(values)))
        for policy in (FCFS, RR)
        for length, values in phase.slowdowns(policy).items()
    ]
    table = series_table(rows)
    names = ("", RR, FCFS)
    shares = [
        [rate, *(float(np.mean(phase.attainment(name, rate))) for name in names)]
        for rate in PHASE_RATES
    ]
    return Section(
        heading="One instance with half of the KV memory that is needed",
        text="Reasoning only (figure), and answers that meet the SLO (table).",
        table=ReportTable(columns=["req/s", "unlimited memory", *names[1:]], rows=shares),
        figure=series_figure(table, "reasoning tokens", "mean TTFT / with unlimited memory"),
        caption=f"300 requests, prompts of 128 tokens, {PHASE_RATES[1]:g} req/s.",
        drawn=("one_instance", table),
    )


def _instances_section(experiment: PascalExperiment) -> Section:
    rate_per_s = experiment.high_rate(ABLATED)
    run = experiment.simulate(experiment.requests(ABLATED, rate_per_s, 0), PASCAL)
    end_s = run.timeline.requests.arrival_s[-1]
    begin_s = max(0.0, end_s - _SHOWN_S)
    spans = pd.DataFrame(
        [(number, "both", begin_s, end_s) for number in range(NUM_INSTANCES)],
        columns=["instance", "role", "start_s", "end_s"],
    )
    moves = pd.DataFrame(
        [
            (one.source, one.destination, one.end_s, "migration")
            for one in run.migrations
            if begin_s <= one.end_s <= end_s
        ],
        columns=["source", "destination", "end_s", "kind"],
    )
    return Section(
        heading="Instances and the requests that move between them",
        figure=instances_figure(spans, moves),
        caption=f"PASCAL, {_workload(experiment, ABLATED)}, seed 0; lines: requests that moved to "
        "answer elsewhere, from source to destination, in the last minute of arrivals.",
        drawn=("migrations", moves),
    )


_SHOWN_S = 60.0
