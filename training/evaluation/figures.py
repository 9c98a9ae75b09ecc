"""Figures: each function takes plain data and returns a matplotlib Figure."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from training.evaluation.drift import Window


def training_curve(history: Sequence[Mapping[str, float]], baseline: float | None) -> Figure:
    """tau_b on the validation split over epochs, with the TF-IDF + ridge baseline on test."""
    figure, axes = _axes((6, 3.5), xlabel="epochs", ylabel="tau_b on the validation split")
    axes.plot([p["epoch"] for p in history], [p["val/tau_b"] for p in history], marker="o", ms=3)
    label = f"TF-IDF + ridge (test){': undefined' if baseline is None else ''}"
    axes.axhline(np.nan if baseline is None else baseline, color="grey", ls="--", label=label)
    axes.legend()
    return figure


def predicted_against_real(
    scores: NDArray[np.float64], lengths: NDArray[np.float64], title: str
) -> Figure:
    """One point per test prompt: its score and its response length (log scale)."""
    names = {"xlabel": "score (higher = longer)", "ylabel": "response length, tokens"}
    figure, axes = _axes((5, 4), title, yscale="log", **names)
    axes.scatter(scores, lengths, s=5, alpha=0.4, linewidths=0)
    return figure


def prefill_latency(points: pd.DataFrame, title: str) -> Figure:
    """Measured and fitted latency over prompt length, a colour per batch size."""
    names = {"xlabel": "prompt length, tokens", "ylabel": "prefill latency, ms"}
    figure, axes = _axes((5, 4), title, yscale="log", **names)
    axes.set_xscale("log", base=2)
    for number, (size, group) in enumerate(points.groupby("batch_size", sort=False)):
        tokens, measured_ms = group["prompt_tokens"], group["measured_s"] * 1e3
        axes.plot(tokens, measured_ms, "o", color=f"C{number}", label=f"measured, batch {size:.0f}")
        axes.plot(tokens, group["fitted_s"] * 1e3, color=f"C{number}", label="fitted")
    axes.legend()
    return figure


def transfer_matrix(
    panels: Mapping[str, Sequence[Sequence[float]]], sources: Sequence[str], targets: Sequence[str]
) -> Figure:
    """tau_b of every source (row) on every target (column), one panel beside the other."""
    width, height = 1.5 + 0.2 * len(targets), 2.5 + 0.2 * len(sources)
    figure = Figure(figsize=(2 + len(panels) * width, height), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, taus) in zip(all_axes, panels.items(), strict=True):
        image = axes.imshow(np.array(taus), vmin=0, vmax=1, cmap="viridis")
        axes.set_xticks(range(len(targets)), targets, rotation=90, fontsize=6)
        axes.set_yticks(range(len(sources)), sources, fontsize=6)
        axes.set_xlabel("tested on the lengths of")
        axes.set_title(title, fontsize=9)
    all_axes[0].set_ylabel("trained on the lengths of")
    figure.colorbar(image, ax=all_axes, label="tau_b, cross-validated over prompts", shrink=0.7)
    return figure


def drift(windows: Sequence[Window], gate: float, title: str) -> Figure:
    """Rolling tau_b with its interval and its gate; below, the coverage of the quantiles."""
    quantiles = list(windows[-1].coverage)
    figure = Figure(figsize=(7, 6 if quantiles else 3.5), layout="constrained")
    panels = figure.subplots(1 + bool(quantiles), sharex=True, squeeze=False)[:, 0]
    rows = [window.end_row for window in windows]
    lows, highs = zip(*(window.tau_b_ci for window in windows), strict=True)
    panels[0].plot(rows, [window.tau_b for window in windows], marker="o", ms=3)
    panels[0].fill_between(rows, lows, highs, alpha=0.2, label="95% interval")
    panels[0].axhline(gate, color="C3", ls="--", label=f"gate {gate:.3f}")
    panels[0].set_ylabel("tau_b of the window")
    panels[0].legend()
    panels[0].set_title(title, fontsize=9)
    for number, quantile in enumerate(quantiles):
        shares = [window.coverage[quantile] for window in windows]
        panels[1].plot(rows, shares, marker="o", ms=3, color=f"C{number}")
        panels[1].axhline(float(quantile), color=f"C{number}", ls=":", lw=1)
    if quantiles:
        label = "share of lengths at or below\nthe quantile (dotted: nominal)"
        panels[1].set(yticks=list(map(float, quantiles)), ylim=(0, 1), ylabel=label)
    panels[-1].set_xlabel("last row of the window in the log")
    return figure


def _axes(size: tuple[float, float], title: str = "", **properties: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set(**properties)
    axes.set_title(title, fontsize=9)
    return figure, axes
