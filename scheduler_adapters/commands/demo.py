"""`demo`: the queues of the simulator and of vLLM, in the order of a trained ranker's scores."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

import numpy as np
import pandas as pd

from lengthwise.agreement import figure_text
from lengthwise.bundle import Manifest, ModelBundle
from lengthwise.errors import UnsupportedByEngine
from lengthwise.progress import Progress
from lengthwise.report_page import ReportSection, write_report
from lengthwise.tables.reading import read_table
from scheduler_adapters.engines.chat_model import DATASET, chat_ids, find_chat_model
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
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import Floats, Requests, make_requests
from scheduler_adapters.workload.score_sources import BundleScores

log = logging.getLogger(__name__)

SCHEDULERS: Final = ("fcfs", "pars", "oracle")
SMALL: Final = "pars, small ranker"
"""Row of the small ranker that `fit demo` distils, in the simulator only."""
_PROFILE: Final = "llama-3-8b@a100-80g"
_NUM_SIMULATED: Final = 2000
"""Limit of held-out prompts in the simulator's burst."""
_SIMULATOR_SEATS: Final = 64
_LIMIT: Final = 320
"""Limit of the chat model's answers; 96% of those that end by themselves are shorter."""
_NEAR_CAPACITY: Final = 0.9
_LOW_LOAD: Final = 0.3
"""Rates of Poisson arrivals, relative to the requests per second of a burst under FCFS."""
_NUM_POISSON: Final = 12
_SECONDS: Final[Mapping[ClockKind, str]] = {
    "steady": "seconds are CPU time of this machine, were it as fast throughout as at first",
    "wall": "seconds of the wall clock",
}
_SHOWN: Final = 90
"""Characters of a prompt and of an answer."""
QUIET: Final = "simulator, low load"
_NEXT: Final = {
    "talk to this ranker behind a small vLLM": "make play",
    "know what it would bring to your server": "lengthwise advise --log gateway.jsonl --gpu h100",
    "put it before your vLLM": "lengthwise serve-vllm MODEL --bundle mlruns/demo/bundle",
}


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Equal requests under each scheduler, in one engine."""

    timelines: Mapping[str, Timeline]
    conditions: str
    answers: pd.DataFrame | None = None
    """Some answers of a chat model, with the moments at which each began and ended."""

    @property
    def summaries(self) -> dict[str, Summary]:
        return {name: summarize(timeline) for name, timeline in self.timelines.items()}


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The training run of the demo, and the sizes of its bursts."""

    trained: Path = Path("mlruns/demo")
    """Folder of the training run (`python -m training fit RECIPE --out`), and of the report."""
    num_engine_requests: int = 32
    """Held-out prompts for vLLM, drawn at random; 0: no vLLM."""
    shape: str | None = None
    """Shape of a random Llama (tiny, small, for a GPU 7b) that answers to recorded lengths; none:
    SmolLM2 answers, or a tiny Llama where it cannot be had."""
    max_num_seqs: int = 8
    """Requests that run at once in vLLM."""
    kv_cache_mib: int = 512
    """Memory of vLLM's KV blocks."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's engine, as in `validate`."""
    seed: int = 0
    """Seed of the draw and of vLLM's random prompts."""


def demo(config: DemoConfig) -> None:
    """Order two engines' queues by the scores of a trained ranker.

    Run `python -m training fit demo --out mlruns/demo` before. The ranker scores the held-out
    prompts in this process. They are served by the simulator and by SmolLM2 in vLLM under FCFS,
    PARS and the oracle: a burst, and Poisson arrivals. The output is a table, and report.html
    beside the bundle.

    Example:
      python -m scheduler_adapters demo --trained mlruns/demo --num-engine-requests 60
    """
    bundle = ModelBundle.load(config.trained / "bundle")
    engines, metrics = serve_bursts(config, bundle), bundle.manifest.metrics
    page = write_demo_report(config.trained, bundle.manifest, engines)
    tau_b, baseline = (figure_text(metrics.get(name)) for name in ("tau_b", "tau_b_tfidf_ridge"))
    print(f"ranker: tau_b {tau_b} (TF-IDF + ridge {baseline})")
    print(text_of(latency_table(engines)))
    print(f"report: {page}")


def serve_bursts(config: DemoConfig, bundle: ModelBundle) -> dict[str, Bursts]:
    """Return the bursts of the simulator and, where it is installed and wanted, of vLLM."""
    held_out = read_table(config.trained / "test.parquet", ["prompt", "output_tokens"])
    held_out = held_out.sample(frac=1, random_state=config.seed).head(_NUM_SIMULATED)
    requests = _scored_requests(bundle, held_out)
    given = dict.fromkeys(SCHEDULERS, requests)
    given["oracle"] = requests.with_scores(requests.output_tokens)
    if (small := config.trained / "small" / "bundle").exists():
        given[SMALL] = _scored_requests(ModelBundle.load(small), held_out)
    engines = _simulate(given)
    if prompts := held_out["prompt"].head(config.num_engine_requests).tolist():
        # The oracle knows recorded lengths: those of the model that answers.
        is_known = bundle.manifest.dataset.get("id") == DATASET or config.shape is not None
        asked = {
            name: given[name].take(np.arange(len(prompts)))
            for name in SCHEDULERS[: None if is_known else -1]
        }
        try:
            engines |= _serve(asked, prompts, config)
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


def _simulate(given: Mapping[str, Requests]) -> dict[str, Bursts]:
    """Simulate a burst and a low load under each scheduler, with its own scores."""
    count = len(given[SCHEDULERS[0]])
    log.info("simulating %d requests on %s", count, _PROFILE)
    instance = Instance.preset(_PROFILE, max_num_seqs=_SIMULATOR_SEATS)
    about = f"{_PROFILE}, {_SIMULATOR_SEATS} at once, simulated"

    def under_all(arrival_s: Floats) -> dict[str, Timeline]:
        return {
            name: simulate(replace(requests, arrival_s=arrival_s), policy_of(name), instance)
            for name, requests in given.items()
        }

    burst = under_all(np.zeros(count))
    rate_per_s = _LOW_LOAD * summarize(burst["fcfs"]).requests_per_s
    quiet = under_all(arrivals_s(count, rate_per_s=rate_per_s, seed=0))
    return {
        "simulator": Bursts(timelines=burst, conditions=f"{count} requests at t = 0, {about}"),
        QUIET: Bursts(timelines=quiet, conditions=f"the same at {rate_per_s:.1f}/s, {about}"),
    }


def policy_of(scheduler: str) -> Policy:
    """Return the policy of a scheduler of the demo."""
    return load_shared("pars" if scheduler == SMALL else scheduler)


def _serve(
    given: Mapping[str, Requests], prompts: Sequence[str], config: DemoConfig
) -> dict[str, Bursts]:
    """Serve a burst and some Poisson arrivals in one vLLM, which stays open for all schedulers."""
    model, chats = (find_chat_model() if config.shape is None else None), None
    own = {name: getattr(config, name) for name in ("max_num_seqs", "kv_cache_mib", "engine")}
    offline = OfflineConfig(
        scheduler=SCHEDULERS[0], model=model, shape=config.shape or "tiny", **own
    )
    about = f"random Llama of shape {offline.shape}, to recorded lengths"
    if model is not None:
        chats, decode = chat_ids(model, list(prompts))
        sizes = {"prompt_tokens": np.array([*map(len, chats)])}
        sizes["output_tokens"] = np.full(len(chats), _LIMIT)
        given = {name: replace(requests, **sizes) for name, requests in given.items()}
        about = f"SmolLM2-135M-Instruct, greedy, at most {_LIMIT} tokens of an answer"
    answers: dict[str, list[list[int]]] = {}
    with (
        open_driver(offline, max_model_len=longest_context(given["fcfs"])) as driver,
        Progress(2 * len(given)) as done,
    ):
        kind, clock = driver.clock(None)

        def under_all(arrival_s: Floats) -> dict[str, Timeline]:
            timelines, count = {}, len(arrival_s)
            for name, requests in given.items():
                asked = replace(requests.take(np.arange(count)), arrival_s=arrival_s)
                timelines[name] = driver.serve(
                    asked,
                    clock=clock,
                    seed=config.seed,
                    policy=policy_of(name),
                    prompts=chats and chats[:count],
                )
                answers.setdefault(name, driver.answers)
                done.step(f"vLLM serves {count} requests under {name}")
            return timelines

        burst = under_all(np.zeros(len(prompts)))
        rate_per_s = _NEAR_CAPACITY * summarize(burst["fcfs"]).requests_per_s
        at_s = arrivals_s(len(prompts), rate_per_s=rate_per_s, seed=config.seed)
        poisson = under_all(at_s[:_NUM_POISSON])
    text = f"vLLM, {about}, {config.max_num_seqs} at once, one engine under all; {_SECONDS[kind]}"
    return {
        "vLLM": Bursts(
            timelines=burst,
            conditions=f"{len(prompts)} requests at t = 0, "
            f"{np.sum(burst['fcfs'].requests.output_tokens == _LIMIT)} of {_LIMIT} tokens, {text}",
            answers=_some_answers(prompts, decode(answers["fcfs"]), burst) if chats else None,
        ),
        "vLLM, Poisson": Bursts(
            timelines=poisson,
            conditions=f"{len(at_s[:_NUM_POISSON])} of them at {rate_per_s:.2f}/s, "
            f"{_NEAR_CAPACITY:.0%} of the burst's rate under FCFS",
        ),
    }


def _some_answers(
    prompts: Sequence[str], answers: Sequence[str], burst: Mapping[str, Timeline]
) -> pd.DataFrame:
    """Return a short, a middling and a long answer, and when each began and ended."""
    tokens = burst["fcfs"].requests.output_tokens
    rows = np.argsort(tokens, kind="stable")[[len(tokens) // 8, len(tokens) // 2, -1]]
    texts = {
        name: [shorten(own[row], _SHOWN, placeholder=" ...") for row in rows]
        for name, own in {"prompt": prompts, "answer": answers}.items()
    } | {"tokens": tokens[rows]}
    moments = {
        f"{name} {event} s": getattr(burst[name], f"{moment}_s")[rows]
        for name in ("fcfs", "pars")
        for event, moment in (("begins", "first_token"), ("ends", "finished"))
    }
    return pd.DataFrame(texts | moments)


def write_demo_report(folder: Path, manifest: Manifest, engines: Mapping[str, Bursts]) -> Path:
    """Write report.html, and beside it latency.svg with its table; returns the page."""
    simulated = engines["simulator"]
    commands = pd.DataFrame(_NEXT.items(), columns=["to", "command"])
    sections = [_latency_section(engines)]
    if "vLLM" in engines and (answers := engines["vLLM"].answers) is not None:
        text = "Answers of vLLM's burst, each with the moments of its first and its last token."
        sections.append(ReportSection(heading="Three answers", text=text, table=answers))
    sections.append(ReportSection(heading="Go on", table=commands))
    means = {name: s.normalized_latency_s.mean for name, s in simulated.summaries.items()}
    lead = (
        f"A length ranker trained on {manifest.dataset.get('train_prompts')} prompts of "
        f"{manifest.dataset.get('id')} (tau_b {figure_text(manifest.metrics.get('tau_b'))} on "
        f"held-out prompts) cuts the mean normalised latency of a burst "
        f"{means['fcfs'] / means['pars']:.1f}-fold.{_quiet_text(engines)}"
    )
    return write_report(folder, title="Lengthwise demo", lead=lead, sections=sections)[0]


def _quiet_text(engines: Mapping[str, Bursts]) -> str:
    """Return what the order gains at a low load, where hardly a request waits."""
    means = {name: s.normalized_latency_s.mean for name, s in engines[QUIET].summaries.items()}
    gain = means["fcfs"] / means["pars"]
    return f" At {_LOW_LOAD:.0%} of that load hardly a request waits, and " + (
        "it gains nothing." if gain < 1.02 else f"the factor is {gain:.2f}."
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
            "all done s": s.makespan_s,
        }
        for engine, bursts in engines.items()
        for summaries in [bursts.summaries]
        for name, s in summaries.items()
    ]
    return pd.DataFrame(rows)
