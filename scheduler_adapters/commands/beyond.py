"""`beyond`: schedulers that no paper has, against the papers' own on the same requests.

The candidates are in `candidates.py`. Settings are chosen on one half of the recorded lengths, and
with other seeds than are reported.
Scores are synthetic with the tau_b of a real ranker; quantiles of the length are calibrated on the
first half, so they are as good as those of a bundle of that quality.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np

from scheduler_adapters.command_line import run_command
from scheduler_adapters.commands.candidates import (
    Informed,
    LeastWork,
    Quantiles,
    ShortestQuantile,
)
from scheduler_adapters.commands.capacity import interval
from scheduler_adapters.commands.reproduce.pars import LONG, SHORT, WORKLOADS
from scheduler_adapters.commands.reproduce.slai import TBT_S, TRACE
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policies.starvation_guard import StarvationGuard
from scheduler_adapters.policy import Policy
from scheduler_adapters.progress import Progress
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.presets import SLAI as SLAI_TESTBED
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.metrics import statistic, summarize, token_gaps
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.data_folder import data_file
from scheduler_adapters.workload.requests import (
    LENGTH_STREAM,
    Floats,
    Ints,
    Requests,
    make_requests,
    poisson_arrivals_s,
    read_trace,
)
from scheduler_adapters.workload.scores import SyntheticScores
from scoring_service.errors import ConfigError

CHATS = "azure-llm-2023/AzureLLMInferenceTrace_conv_first_half.csv"
FRACTIONS = (0.5, 0.9)
"""Quantiles that the calibration knows."""
CHOOSING_SEED = 1000
"""Settings are chosen with seeds from here on; reported are 0, 1, ..."""
CHOOSING, REPORTING = 0, 1
"""Halves of the recorded lengths: even and odd rows."""
_SCORE_BINS = 12


@dataclass(frozen=True, kw_only=True)
class BeyondConfig:
    """How much is run."""

    seeds: int = 5
    """Runs per workload; intervals are over them."""
    num_requests: int = 2000
    """Requests per run."""
    tau_b: float = 0.595
    """Kendall tau-b of the scores with the true lengths; the default is the demo ranker's."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        if self.seeds < 2 or self.num_requests < 100:
            raise ConfigError(
                f"seeds is {self.seeds} and num_requests {self.num_requests}; use at least 2 and "
                "100, or there is no interval to judge by"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """Recorded lengths, arriving all at once or at a share of what FCFS can serve."""

    name: str
    prompt_tokens: Ints
    output_tokens: Ints
    instance: Instance
    load: float | None = None
    """None: all at 0 s."""
    paying: float = 0.0
    """Share of the user class "paying"; the others are "free"."""

    def requests(self, count: int, half: int, seed: int) -> Requests:
        """`count` requests with lengths drawn from one half."""
        random = np.random.default_rng((seed, LENGTH_STREAM))
        rows = random.choice(np.arange(half, len(self.output_tokens), 2), count)
        is_paying = random.random(count) < self.paying
        arrival_s = np.zeros(count)
        if self.load is not None:
            rate_per_s = self.load * _saturation_per_s(self, count)
            arrival_s = poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=seed)
        return make_requests(
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            arrival_s=arrival_s,
            user_class=np.where(is_paying, "paying", "free"),
            tbt_s=np.where(is_paying, TBT_S["paying"], TBT_S["free"]),
        )

    @property
    def label(self) -> str:
        return f"{self.name}, " + ("burst" if self.load is None else f"load {self.load:g}")


@cache
def _saturation_per_s(workload: Workload, count: int) -> float:
    """Requests per second that FCFS serves while there is always work: the first half."""
    burst = replace(workload, load=None).requests(count, CHOOSING, CHOOSING_SEED)
    return float(count / 2 / np.median(simulate(burst, FCFS(), workload.instance).finished_s))


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A variant against what a paper has, and by what they are compared."""

    variant: str
    against: str
    make_variant: Callable[..., Policy]
    """Takes one of `settings`."""
    make_baseline: Callable[[], Policy]
    workloads: Sequence[Workload]
    metrics: dict[str, Callable[[Timeline], float]]
    """Seconds, less is better; the first one decides."""
    settings: Sequence[dict[str, bool]] = ({},)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric on one workload, means over the seeds; seconds, less is better."""

    variant: str
    against: str
    workload: str
    metric: str
    baseline_s: float
    variant_s: float
    oracle_s: float
    """The variant with the true lengths."""
    change: float
    """Of the variant against the baseline, mean of the pairs with one seed."""
    interval: tuple[float, float]
    """95% confidence interval of the change."""
    decides: bool
    """Whether the variant is judged by this row."""

    @property
    def verdict(self) -> str:
        low, high = self.interval
        return "wins" if high < 0 else "loses" if low > 0 else "no difference"


def run(config: BeyondConfig) -> None:
    """Measure schedulers that no paper has against the papers' own, on the same requests.

    Example:
      python -m scheduler_adapters beyond --seeds 5

    A variant is worth having if, by its first metric, it wins on one workload or more and loses on
    none; a win or a loss is a 95% confidence interval of the paired change that leaves out 0.
    """
    rows, chosen = [], {}
    contests = [_quantile_contest(), _work_contest()]
    with Progress(sum(len(contest.workloads) for contest in contests)) as progress:
        for contest in contests:
            settings = _choose(contest, config)
            chosen[contest.variant] = settings
            for workload in contest.workloads:
                rows += _compare(contest, settings, workload, config)
                progress.step(f"{contest.variant}: {workload.label}")
    verdicts = {contest.variant: _verdict(contest.variant, rows) for contest in contests}
    if config.json:
        shown = [asdict(row) | {"verdict": row.verdict} for row in rows]
        print(json.dumps({"rows": shown, "settings": chosen, "verdicts": verdicts}))
        return
    for row in rows:
        print(_text(row))
    for name, verdict in verdicts.items():
        print(f"{name}: {verdict}" + (f"; settings {chosen[name]}" if chosen[name] else ""))


def _verdict(variant: str, rows: Sequence[Row]) -> str:
    found = [row.verdict for row in rows if row.variant == variant and row.decides]
    wins, losses = found.count("wins"), found.count("loses")
    worth = "worth having" if wins and not losses else "not worth having"
    return f"{worth}: wins on {wins} workloads, loses on {losses}, of {len(found)}"


def _text(row: Row) -> str:
    low, high = row.interval
    return (
        f"{row.verdict:13} {row.change:+7.1%} [{low:+.1%}, {high:+.1%}]  {row.variant} against "
        f"{row.against} | {row.workload} | {row.metric} {row.baseline_s:.3f} -> "
        f"{row.variant_s:.3f} s (true lengths {row.oracle_s:.3f})"
        + (" | decides" if row.decides else "")
    )


def _quantile_contest() -> Contest:
    """Shortest predicted first by quantiles, against PARS; both with the starvation guard."""
    return Contest(
        variant="shortest-quantile",
        against="pars",
        make_variant=lambda **settings: StarvationGuard(ShortestQuantile(**settings)),
        make_baseline=pars,
        workloads=[
            replace(workload, load=load) for workload in _queue_workloads() for load in (None, 1.1)
        ],
        metrics={
            "mean E2E/token": lambda t: summarize(t).normalized_latency_s.mean,
            "P90 E2E/token": lambda t: summarize(t).normalized_latency_s.p90,
            "mean E2E": lambda t: summarize(t).e2e_s.mean,
            "P99 E2E": lambda t: summarize(t).e2e_s.p99,
        },
        settings=[{"displaces": True}, {"displaces": False}],
    )


def _work_contest() -> Contest:
    """SLAI by predicted total work, against shortest prompt first."""
    instance = replace(Instance.preset(SLAI_TESTBED), max_num_seqs=128, max_tokens=4096)
    return Contest(
        variant="slai-least-work",
        against="slai",
        make_variant=LeastWork,
        make_baseline=SLAI,
        workloads=[
            replace(_traced(name, file, instance), load=load, paying=0.05)
            for name, file in (("ShareGPT", TRACE), ("Azure chats", CHATS))
            for load in (0.9, 1.0)
        ],
        metrics={
            "median TTFT": lambda t: summarize(t).ttft_s.p50,
            "P99 TTFT": lambda t: summarize(t).ttft_s.p99,
            "mean E2E": lambda t: summarize(t).e2e_s.mean,
            "P99 TBT of the paying": _paying_tbt_s,
        },
    )


def _paying_tbt_s(timeline: Timeline) -> float:
    return statistic(*token_gaps(timeline.take(timeline.requests.user_class == "paying"))).p99


def _queue_workloads() -> list[Workload]:
    instance = Instance.preset("llama-3-8b@a100-40g", max_num_seqs=256, max_tokens=2048)
    random = np.random.default_rng((CHOOSING_SEED, LENGTH_STREAM))
    drawn = []
    for name in (SHORT, LONG):
        output = WORKLOADS[name].recorded()
        if output is None:
            output = WORKLOADS[name].draw(10_000, random)
        prompt = np.clip(random.lognormal(np.log(40), 0.8, len(output)), 1, 2048).astype(np.int64)
        drawn.append(
            Workload(name=name, prompt_tokens=prompt, output_tokens=output, instance=instance)
        )
    return [*drawn, _traced("Azure chats", CHATS, instance)]


@cache
def _read(file: str) -> Requests:
    return read_trace(data_file(file))


def _traced(name: str, file: str, instance: Instance) -> Workload:
    requests = _read(file)
    return Workload(
        name=name,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        instance=instance,
    )


def _scored(workload: Workload, config: BeyondConfig, half: int, seed: int) -> Requests:
    requests = workload.requests(config.num_requests, half, seed)
    return requests.with_scores(SyntheticScores(tau_b=config.tau_b, seed=seed).scores(requests))


@cache
def _calibration(workload: Workload, config: BeyondConfig) -> tuple[Floats, Floats]:
    """Scores (K,) and the quantiles of the lengths around them (F, K), from the choosing half."""
    requests = _scored(workload, config, CHOOSING, CHOOSING_SEED)
    bins = np.array_split(np.argsort(requests.score), _SCORE_BINS)
    scores = np.array([requests.score[rows].mean() for rows in bins])
    lengths = [np.quantile(requests.output_tokens[rows], FRACTIONS) for rows in bins]
    return scores, np.maximum.accumulate(np.transpose(lengths), axis=1)


def _quantiles(workload: Workload, config: BeyondConfig, requests: Requests) -> list[Quantiles]:
    """What a calibrated ranker would say of each request."""
    scores, lengths = _calibration(workload, config)
    tokens = np.transpose([np.interp(requests.score, scores, row) for row in lengths])
    return [tuple(zip(FRACTIONS, row, strict=True)) for row in tokens.tolist()]


def _true_quantiles(requests: Requests) -> list[Quantiles]:
    return [tuple((f, float(n)) for f in FRACTIONS) for n in requests.output_tokens]


def _choose(contest: Contest, config: BeyondConfig) -> dict[str, bool]:
    """The settings with the least first metric, relative to the baseline, on the choosing half."""
    if len(contest.settings) == 1:
        return contest.settings[0]
    measure = next(iter(contest.metrics.values()))
    changes = np.zeros(len(contest.settings))
    for workload in contest.workloads:
        requests = _scored(workload, config, CHOOSING, CHOOSING_SEED)
        quantiles = _quantiles(workload, config, requests)
        baseline_s = measure(simulate(requests, contest.make_baseline(), workload.instance))
        for k, settings in enumerate(contest.settings):
            policy = Informed(contest.make_variant(**settings), quantiles)
            changes[k] += measure(simulate(requests, policy, workload.instance)) / baseline_s
    return contest.settings[int(np.argmin(changes))]


def _compare(
    contest: Contest, settings: dict[str, bool], workload: Workload, config: BeyondConfig
) -> list[Row]:
    """Every metric of the variant and the baseline, on the reporting half."""
    found = []
    for seed in range(config.seeds):
        requests = _scored(workload, config, REPORTING, seed)
        informed = [
            Informed(contest.make_variant(**settings), quantiles)
            for quantiles in (_quantiles(workload, config, requests), _true_quantiles(requests))
        ]
        timelines = [
            simulate(requests, policy, workload.instance)
            for policy in (contest.make_baseline(), *informed)
        ]
        found.append([[m(t) for t in timelines] for m in contest.metrics.values()])
    rows = []
    for k, metric in enumerate(contest.metrics):
        baseline_s, variant_s, oracle_s = np.transpose([run[k] for run in found])
        changes = (variant_s / baseline_s - 1).tolist()
        rows.append(
            Row(
                variant=contest.variant,
                against=contest.against,
                workload=workload.label,
                metric=metric,
                baseline_s=float(baseline_s.mean()),
                variant_s=float(variant_s.mean()),
                oracle_s=float(oracle_s.mean()),
                change=float(np.mean(changes)),
                interval=interval(changes),
                decides=k == 0,
            )
        )
    return rows


def main(arguments: Sequence[str]) -> int:
    """The command line. Returns the exit code."""
    return run_command("beyond", BeyondConfig, run, arguments)
