"""`demo`: the queues of the simulator and of vLLM, in the order of a trained ranker's scores."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from lengthwise.agreement import figure_text
from lengthwise.bundle import Manifest, ModelBundle
from lengthwise.command_line.program import print_banner
from lengthwise.errors import UnsupportedByEngine
from lengthwise.report_page import ReportSection, write_report
from lengthwise.tables.reading import read_table
from scheduler_adapters.engines.engine_clock import ClockKind
from scheduler_adapters.engines.vllm_v1.in_process import (
    OfflineConfig,
    longest_context,
    open_driver,
)
from scheduler_adapters.policies.fair_shares import load_shared
from scheduler_adapters.policy import Policy
from scheduler_adapters.reporting import figures as charts
from scheduler_adapters.reporting.latency_tables import ecdf_table, text_of
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import Summary, summarize
from scheduler_adapters.timeline.timeline import Timeline, join_timelines
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.score_sources import BundleScores

log = logging.getLogger(__name__)

SCHEDULERS: Final = ("fcfs", "pars", "oracle")
SMALL: Final = "pars, small ranker"
"""Row of the small ranker that `fit demo` distils, in the simulator only."""
_PROFILE: Final = "llama-3-8b@a100-80g"
_NUM_SIMULATED: Final = 2000
"""Limit of held-out prompts in the simulator's burst."""
_SIMULATOR_SEATS: Final = 64
_ENGINE_BURSTS: Final = 4
"""Number of bursts; the machine's speed hardly changes within a short one."""
_SECONDS: Final[Mapping[ClockKind, str]] = {
    "steady": "seconds are CPU time of this machine, were it as fast throughout as at first",
    "wall": "seconds of the wall clock",
}
_SHOWN: Final = 48
_NEXT: Final = {
    "know what it would bring to your server": "lengthwise advise --log gateway.jsonl --gpu h100",
    "put it before your vLLM": "lengthwise serve-vllm MODEL --bundle mlruns/demo/bundle",
}


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Equal requests under each scheduler, in one engine."""

    timelines: Mapping[str, Timeline]
    conditions: str

    @property
    def summaries(self) -> dict[str, Summary]:
        return {name: summarize(timeline) for name, timeline in self.timelines.items()}


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The training run of the demo, and the sizes of its bursts."""

    trained: Path = Path("mlruns/demo")
    """Folder of the training run (`python -m training fit RECIPE --out`), and of the report."""
    num_engine_requests: int = 240
    """Held-out prompts for vLLM, drawn at random, in four bursts (on a GPU: one); 0: no vLLM."""
    shape: str = "tiny"
    """Shape of vLLM's random Llama: tiny, small, or for a GPU 7b."""
    max_num_seqs: int = 4
    """Requests that run at once in vLLM."""
    kv_cache_mib: int = 64
    """Memory of vLLM's KV blocks."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's engine, as in `validate`."""
    seed: int = 0
    """Seed of the draw and of vLLM's random prompts."""


def demo(config: DemoConfig) -> None:
    """Order two engines' queues by the scores of a trained ranker.

    Run `python -m training fit demo --out mlruns/demo` before. The ranker scores the held-out
    prompts in this process. Bursts of them are served by the simulator and by vLLM, under FCFS,
    PARS and the oracle. The output is a table, and report.html beside the bundle.

    Example:
      python -m scheduler_adapters demo --trained mlruns/demo --num-engine-requests 60
    """
    bundle = ModelBundle.load(config.trained / "bundle")
    engines, metrics = serve_bursts(config, bundle), bundle.manifest.metrics
    page = write_demo_report(config.trained, bundle.manifest, engines)
    print_banner(bundle.manifest.banner)
    tau_b, baseline = (figure_text(metrics.get(name)) for name in ("tau_b", "tau_b_tfidf_ridge"))
    print(f"ranker: tau_b {tau_b} (TF-IDF + ridge {baseline})")
    print(text_of(latency_table(engines)))
    print(f"report: {page}")


def serve_bursts(config: DemoConfig, bundle: ModelBundle) -> dict[str, Bursts]:
    """Return the bursts of the simulator and, where it is installed and wanted, of vLLM."""
    held_out = read_table(config.trained / "test.parquet", ["prompt", "output_tokens"])
    requests = _scored_requests(bundle, held_out.head(_NUM_SIMULATED))
    given = {name: _for_scheduler(requests, name) for name in SCHEDULERS}
    if (small := config.trained / "small" / "bundle").exists():
        given[SMALL] = _scored_requests(ModelBundle.load(small), held_out.head(_NUM_SIMULATED))
    engines = {"simulator": _simulate(given)}
    if (count := min(config.num_engine_requests, len(requests))) > 0:
        rows = np.sort(np.random.default_rng(config.seed).permutation(len(requests))[:count])
        try:
            engines["vLLM"] = _serve(requests.take(rows), config)
        except UnsupportedByEngine as error:
            log.warning("%s; the demo leaves the real engine out", error)
    return engines


def _scored_requests(bundle: ModelBundle, held_out: pd.DataFrame) -> Requests:
    """Return a burst of the held-out prompts with their scores."""
    prompts = held_out["prompt"].tolist()
    log.info("scoring %d held-out prompts", len(prompts))
    scored = BundleScores(bundle.path).score_prompts(prompts)
    return make_requests(
        prompt_tokens=scored.prompt_tokens,
        output_tokens=held_out["output_tokens"].to_numpy(),
        scores=scored.values,
    )


def _simulate(given: Mapping[str, Requests]) -> Bursts:
    """Simulate a burst under each scheduler, with its own scores."""
    count = len(given[SCHEDULERS[0]])
    log.info("simulating a burst of %d on %s", count, _PROFILE)
    instance = Instance.preset(_PROFILE, max_num_seqs=_SIMULATOR_SEATS)
    return Bursts(
        timelines={
            name: simulate(requests, policy_of(name), instance) for name, requests in given.items()
        },
        conditions=f"{count} requests at t = 0, {_PROFILE}, {_SIMULATOR_SEATS} at once, simulated",
    )


def policy_of(scheduler: str) -> Policy:
    """Return the policy of a scheduler of the demo."""
    return load_shared("pars" if scheduler == SMALL else scheduler)


def _serve(requests: Requests, config: DemoConfig) -> Bursts:
    """Serve bursts in one engine, each under all schedulers in turn, every other time in reverse.

    The order makes a slowing machine about equally fast under each scheduler.
    """
    names = ("shape", "max_num_seqs", "kv_cache_mib", "engine")
    own = {name: getattr(config, name) for name in names}
    offline = OfflineConfig(scheduler=SCHEDULERS[0], **own)
    served: dict[str, list[Timeline]] = {name: [] for name in SCHEDULERS}
    with open_driver(offline, max_model_len=longest_context(requests)) as driver:
        kind, clock = driver.clock(None)
        rows = np.array_split(
            np.arange(len(requests)), min(1 if kind == "wall" else _ENGINE_BURSTS, len(requests))
        )
        for number, burst in enumerate(rows):
            for name in SCHEDULERS[:: -1 if number % 2 else 1]:
                log.info("serving a burst of %d with vLLM under %s", len(burst), name)
                scored = _for_scheduler(requests.take(burst), name)
                policy = policy_of(name)
                timeline = driver.serve(scored, clock=clock, seed=config.seed, policy=policy)
                served[name].append(timeline)
    return Bursts(
        timelines={
            name: join_timelines(_for_scheduler(requests, name), timelines, rows)
            for name, timelines in served.items()
        },
        conditions=f"{len(requests)} of the same requests in {len(rows)} bursts, each at t = 0; "
        f"vLLM, random Llama of shape {config.shape}, {config.max_num_seqs} at once, one engine "
        f"under all three in turn; {_SECONDS[kind]}",
    )


def _for_scheduler(requests: Requests, name: str) -> Requests:
    return requests.with_scores(requests.output_tokens) if name == "oracle" else requests


def write_demo_report(folder: Path, manifest: Manifest, engines: Mapping[str, Bursts]) -> Path:
    """Write report.html, and beside it latency.svg with its table; returns the page."""
    simulated = engines["simulator"]
    commands = pd.DataFrame(_NEXT.items(), columns=["to", "command"])
    sections = [_waiting_section(simulated), _latency_section(engines)]
    sections.append(ReportSection(heading="Go on", table=commands))
    means = {name: s.normalized_latency_s.mean for name, s in simulated.summaries.items()}
    banner = f"{manifest.banner}. " if manifest.banner else ""
    lead = (
        f"{banner}A length ranker trained on {manifest.dataset.get('train_prompts')} prompts of "
        f"{manifest.dataset.get('id')} (tau_b {figure_text(manifest.metrics.get('tau_b'))} on "
        f"held-out prompts) cuts the mean normalised latency of a burst "
        f"{means['fcfs'] / means['pars']:.1f}-fold."
    )
    return write_report(folder, title="Lengthwise demo", lead=lead, sections=sections)[0]


def _waiting_section(bursts: Bursts) -> ReportSection:
    """Return the effect of ordering by length on a few requests."""
    tables = []
    for policy in ("fcfs", "pars"):
        timeline = bursts.timelines[policy]
        lengths = timeline.requests.output_tokens
        some = np.linspace(0, len(lengths) - 1, min(_SHOWN, len(lengths))).astype(int)
        columns = {
            "policy": policy,
            "scheduled_s": timeline.scheduled_s[some],
            "finished_s": timeline.finished_s[some],
            "is_long": lengths[some] > np.median(lengths),
        }
        tables.append(pd.DataFrame(columns))
    return ReportSection(
        heading="What happens",
        text="A server that answers in order of arrival (FCFS) lets a question that takes a word "
        "wait behind one that takes an essay. The ranker has learnt, from prompts and the lengths "
        "of their answers, which answers will be long; it reads the prompt before the request runs "
        "and gives it a score. The scheduler (PARS) starts those with the lowest score first. "
        "Model, engine and answers are the same.",
        figure=charts.waiting_figure(pd.concat(tables)),
        caption=f"{len(some)} of the burst's requests, simulated: thin while they wait, thick "
        "while they run, by when they end. Long: longer than half of all.",
    )


def _latency_section(engines: Mapping[str, Bursts]) -> ReportSection:
    table = ecdf_table(
        {
            engine: {name: one.e2e_s() for name, one in bursts.timelines.items()}
            for engine, bursts in engines.items()
        }
    )
    return ReportSection(
        heading="Latencies",
        text="The same requests under each scheduler; s/token is the normalised latency, E2E "
        "divided by output tokens. The oracle knows every true length: the best a ranker could do.",
        table=latency_table(engines),
        figure=charts.ecdf_figure(table, "E2E latency (s)"),
        caption=" ".join(f"{engine}: {own.conditions}." for engine, own in engines.items()),
        drawn=("latency", table),
    )


def latency_table(engines: Mapping[str, Bursts]) -> pd.DataFrame:
    """Return a row per engine and scheduler: latencies, and the first relative to FCFS."""
    rows = [
        {
            "engine": engine,
            "scheduler": name,
            "s/token mean": s.normalized_latency_s.mean,
            "s/token p90": s.normalized_latency_s.p90,
            "FCFS / this": (
                f"{summaries['fcfs'].normalized_latency_s.mean / s.normalized_latency_s.mean:.2f}x"
            ),
            "E2E s mean": s.e2e_s.mean,
            "E2E s p99": s.e2e_s.p99,
            "TTFT s mean": s.ttft_s.mean,
        }
        for engine, bursts in engines.items()
        for summaries in [bursts.summaries]
        for name, s in summaries.items()
    ]
    return pd.DataFrame(rows)
