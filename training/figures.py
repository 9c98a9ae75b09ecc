"""Figures of a training run: each function takes plain data and returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray


def training_curve(history: Sequence[Mapping[str, float]], baseline: float) -> Figure:
    """tau_b on the validation split over epochs, beside the TF-IDF + ridge baseline on test."""
    figure = Figure(figsize=(6, 3.5))
    axes = figure.subplots()
    axes.plot([p["epoch"] for p in history], [p["val/tau_b"] for p in history], marker="o", ms=3)
    axes.axhline(baseline, color="grey", ls="--", label="TF-IDF + ridge (test)")
    axes.set_xlabel("epochs")
    axes.set_ylabel("tau_b on the validation split")
    axes.legend()
    return figure


def predicted_against_real(
    scores: NDArray[np.float64], lengths: NDArray[np.float64], title: str
) -> Figure:
    """One point per test prompt: its score and its response length (log scale)."""
    figure = Figure(figsize=(5, 4))
    axes = figure.subplots()
    axes.scatter(scores, lengths, s=5, alpha=0.4, linewidths=0)
    axes.set_yscale("log")
    axes.set_xlabel("score (higher = longer)")
    axes.set_ylabel("response length, tokens")
    axes.set_title(title, fontsize=9)
    return figure


def transfer_matrix(taus: NDArray[np.float64], models: Sequence[str]) -> Figure:
    """tau_b of training on the row's lengths and testing on the column's."""
    size = 2 + 0.3 * len(models)
    figure = Figure(figsize=(size + 1, size))
    axes = figure.subplots()
    image = axes.imshow(taus, vmin=0, cmap="viridis")
    axes.set_xticks(range(len(models)), models, rotation=90, fontsize=6)
    axes.set_yticks(range(len(models)), models, fontsize=6)
    axes.set_xlabel("tested on the lengths of")
    axes.set_ylabel("trained on the lengths of")
    figure.colorbar(image, label="tau_b, cross-validated over prompts", shrink=0.7)
    return figure
