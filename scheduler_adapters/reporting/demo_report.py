"""Report of the demo: bursts and training run as sections and figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from lengthwise.agreement import figure_text
from lengthwise.bundle import Manifest
from lengthwise.report_page import ReportSection, write_report
from scheduler_adapters.reporting import figures
from scheduler_adapters.reporting.latency_tables import ecdf_table
from scheduler_adapters.timeline.latency_metrics import Summary, summarize
from scheduler_adapters.timeline.timeline import Timeline

_SHOWN: Final = 48
_GO_ON: Final = ReportSection(
    heading="Go on",
    table=pd.DataFrame(
        {
            "to": [
                "talk to this ranker behind a small vLLM",
                "know what it would bring to your server",
                "put it before your vLLM",
            ],
            "command": [
                "make play",
                "python -m scheduler_adapters advise --log gateway.jsonl --gpu h100",
                "python -m scheduler_adapters serve-vllm MODEL --bundle mlruns/demo/bundle",
            ],
        }
    ),
)


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Equal requests under each scheduler, in one engine."""

    timelines: Mapping[str, Timeline]
    conditions: str

    @property
    def summaries(self) -> dict[str, Summary]:
        return {name: summarize(timeline) for name, timeline in self.timelines.items()}


def write_demo_report(
    folder: Path, manifest: Manifest, simulated: Bursts, served: Bursts | None
) -> Path:
    """Write report.html, and beside it latency.svg with its table; returns the page."""
    engines = {"simulator": simulated} | ({} if served is None else {"vLLM": served})
    sections = [_waiting_section(simulated), _latency_section(engines)]
    sections += [_predictor_section(manifest), _GO_ON]
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
        figure=figures.waiting_figure(pd.concat(tables)),
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
        table=pd.DataFrame([row for own in engines.items() for row in _latency_rows(*own)]),
        figure=figures.ecdf_figure(table, "E2E latency (s)"),
        caption=" ".join(f"{engine}: {own.conditions}." for engine, own in engines.items()),
        drawn=("latency", table),
    )


def _predictor_section(manifest: Manifest) -> ReportSection:
    metrics = manifest.metrics
    rows = [
        ("this ranker", metrics.get("tau_b")),
        ("TF-IDF + ridge, same training prompts", metrics.get("tau_b_tfidf_ridge")),
    ]
    if "second_answer" in metrics:
        rows.append(("copying the model's own second response", metrics["second_answer"]))
    if (attainable := manifest.dataset.get("attainable_tau_b")) is not None:
        rows.append(("best possible, by construction of the synthetic set", attainable))
    rows = [(name, "undefined" if value is None else value) for name, value in rows]
    return ReportSection(
        heading="Predicted against real",
        text="Only the order of the scores matters to the scheduler.",
        table=pd.DataFrame(rows, columns=["ranker", "tau_b, held out"]),
    )


def _latency_rows(engine: str, bursts: Bursts) -> list[dict[str, float | str]]:
    """Return a row per scheduler: normalised latency and E2E, and how many times below FCFS."""
    summaries = bursts.summaries
    base = summaries["fcfs"].normalized_latency_s.mean
    return [
        {
            "engine": engine,
            "scheduler": name,
            "s/token mean": s.normalized_latency_s.mean,
            "s/token p90": s.normalized_latency_s.p90,
            "FCFS / this": f"{base / s.normalized_latency_s.mean:.2f}x",
            "E2E s mean": s.e2e_s.mean,
            "E2E s p99": s.e2e_s.p99,
            "TTFT s mean": s.ttft_s.mean,
        }
        for name, s in summaries.items()
    ]
