"""The report of a ranker: its order of lengths, its baselines and its worst errors."""

from collections.abc import Mapping, Sequence
from typing import Final

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lengthwise.bundle import Manifest
from lengthwise.report_page import FIGURE_STYLE, ReportSection, page_text

EVALUATION: Final = "eval_results_table.json"
"""Name of the table of an evaluation in MLflow."""
_OTHERS: Final = {
    "TF-IDF + ridge, same training prompts": "tau_b_tfidf_ridge",
    "number of prompt tokens": "tau_b_prompt_tokens",
    "mean length of the prompt's group, ties by chance": "tau_b_group_means",
    "the model's own second answer": "second_answer",
    "the mean of the model's further answers": "ceiling",
}
"""Other orders of the prompts, and their tau_b in a manifest."""
_MOST_ROWS: Final = 1000
_NUM_WORST: Final = 12
_CHARACTERS: Final = 90
"""Most characters of a prompt in a table."""


def ranker_page(
    manifest: Manifest,
    prompts: Sequence[str],
    scores: NDArray[np.float64],
    lengths: NDArray[np.float64],
) -> str:
    """Return the page of a ranker, as HTML, with the figures of its manifest.

    `prompts` are those it was tested on, with their `scores` and observed `lengths`, in tokens.
    """
    metrics = manifest.metrics
    tau_b, interval = metrics["tau_b"], metrics["tau_b_ci"]
    taus = {"this ranker": (tau_b, interval)}
    taus |= {name: (metrics[key], None) for name, key in _OTHERS.items() if key in metrics}
    order = [(n, "undefined" if t is None else t, *(ci or "--")) for n, (t, ci) in taus.items()]
    sections = [
        ReportSection(
            heading="Order of the lengths",
            text="tau_b is 1 where every pair of prompts is in the right order, 0 by chance. A "
            "second answer is the model's own to the same prompt. The mean of its further answers "
            "is what a ranker of prompts can reach.",
            table=pd.DataFrame(order, columns=["ordered by", "tau_b", "from", "to"]),
        )
    ]
    with matplotlib.rc_context(FIGURE_STYLE):
        points = ReportSection(
            heading="Predicted against real",
            figure=predicted_against_real(scores, lengths),
            caption=f"Each point is one of {len(scores):,} prompts.",
        )
        sections.append(points)
        if coverage := metrics.get("coverage"):
            columns = ["quantile", "share of lengths at or below it"]
            text = (
                "A calibrated ranker also predicts quantiles of the length. The share of lengths "
                "at or below each should be the quantile itself."
            )
            table = pd.DataFrame(((float(q), n) for q, n in coverage.items()), columns=columns)
            sections.append(ReportSection(heading="Predicted lengths", text=text, table=table))
        sections.append(_worst(prompts, scores, lengths))
        if manifest.history:
            curve = training_curve(manifest.history, metrics.get("tau_b_tfidf_ridge"))
            caption = f"MLflow run {manifest.mlflow_run_id}."
            sections.append(ReportSection(heading="Training", figure=curve, caption=caption))
    low, high = interval or (None, None)
    between = "" if low is None else f" (95% interval {low:.3f} to {high:.3f})"
    said = "undefined" if tau_b is None else f"{tau_b:.3f}"
    lead = (
        f"On {len(prompts):,} prompts that it was not trained on, this ranker's order agrees with "
        f"that of the observed lengths ({manifest.label}) by a tau_b of {said}{between}. "
        f"It was trained on {manifest.dataset.get('train_prompts', '?')} prompts of "
        f"{manifest.dataset.get('id', 'an unknown set')}."
    )
    return page_text(title=f"Ranker {manifest.name}", lead=lead, sections=sections)


def evaluation_table(
    prompts: Sequence[str], lengths: NDArray[np.float64], scores: NDArray[np.float64]
) -> pd.DataFrame:
    """Return the first prompts with length and score, as a table for MLflow's evaluations.

    A place is the share of all prompts that a prompt is no shorter than, observed and predicted.
    """
    columns = {"prompt": list(prompts), "tokens": lengths, "score": scores}
    places = {"place": pd.Series(lengths), "predicted_place": pd.Series(scores)}
    ranks = {name: values.rank(pct=True) for name, values in places.items()}
    return pd.DataFrame(columns | ranks)[:_MOST_ROWS]


def training_curve(history: Sequence[Mapping[str, float]], baseline: float | None) -> Figure:
    """tau_b on the validation split over epochs, with the TF-IDF + ridge baseline on test."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="epochs", ylabel="tau_b on the validation split")
    axes.plot([p["epoch"] for p in history], [p["val/tau_b"] for p in history], marker="o", ms=3)
    label = f"TF-IDF + ridge (test){': undefined' if baseline is None else ''}"
    axes.axhline(np.nan if baseline is None else baseline, color="grey", ls="--", label=label)
    axes.legend()
    return figure


def predicted_against_real(scores: NDArray[np.float64], lengths: NDArray[np.float64]) -> Figure:
    """One point per test prompt: its score and its response length (log scale)."""
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="score (higher = longer)", ylabel="response length, tokens", yscale="log")
    axes.scatter(scores, lengths, s=5, alpha=0.4, linewidths=0)
    return figure


def _worst(
    prompts: Sequence[str], scores: NDArray[np.float64], lengths: NDArray[np.float64]
) -> ReportSection:
    from scipy.stats import rankdata

    places = [rankdata(values) / len(values) for values in (scores, lengths)]
    farthest = np.argsort(-np.abs(places[0] - places[1]), kind="stable")[:_NUM_WORST]
    rows = []
    for n in farthest:
        line = " ".join(prompts[n].split())
        start = line if len(line) <= _CHARACTERS else f"{line[: _CHARACTERS - 1]}…"
        rows.append((start, f"{places[0][n]:.0%}", f"{places[1][n]:.0%}", int(lengths[n])))
    columns = ("prompt", "longer than, predicted", "longer than, real", "tokens")
    return ReportSection(
        heading="Worst errors",
        text="The share of all prompts that a prompt was predicted to be longer than, and is.",
        table=pd.DataFrame(rows, columns=columns),
    )
