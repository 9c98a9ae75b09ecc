"""Bundles in a store: found by reference, and listed with their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoring_service.bundle import Manifest, ModelBundle, read_manifest
from scoring_service.errors import BundleError

if TYPE_CHECKING:
    from training.release.tracking import Store


def open_store(mlruns_dir: str) -> Store:
    """Open the store in that folder. MLflow takes seconds to import, so it is imported here."""
    from training.release.tracking import Store

    return Store(mlruns_dir)


def find_bundle(reference: str, mlruns_dir: str) -> ModelBundle:
    """Return a bundle by its folder, or by NAME@champion or NAME/VERSION in the registry."""
    name, _, version = reference.removeprefix("models:/").replace("@", "/").rpartition("/")
    is_number = version.isascii() and version.isdigit()
    if Path(reference).exists() or not name or not (is_number or "@" in reference):
        return ModelBundle.load(reference)
    return ModelBundle.load(open_store(mlruns_dir).version(name, version).bundle)


def list_store(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Return runs and versions with the figures of their bundles; None without a bundle."""
    runs = [
        {"run_id": run.run_id, "name": run.name, "status": run.status, "started": run.started}
        | _figures_at(run.bundle)
        for run in store.runs()
    ]
    versions = [
        {"name": each.name, "version": each.version, "champion": each.is_champion}
        | {"run_id": each.run_id, "promoted_by": each.tags.get("promoted_by")}
        | {"verdict": each.tags.get("verdict"), **_figures_at(each.bundle)}
        for each in store.versions()
    ]
    return {"runs": runs, "versions": versions}


def _figures_at(folder: Path) -> dict[str, Any]:
    try:
        return figures_of(read_manifest(folder))
    except BundleError:
        return {"dataset": None, "revision": None, "tau_b": None, "tau_b_ci": None}


def figures_of(manifest: Manifest) -> dict[str, Any]:
    """Return the data set, the revision and tau_b of a bundle."""
    return {
        "dataset": manifest.dataset.get("id"),
        "revision": manifest.revision,
        "tau_b": manifest.metrics.get("tau_b"),
        "tau_b_ci": manifest.metrics.get("tau_b_ci"),
    }


def show_tau_b(figures: Mapping[str, Any]) -> str:
    """Return e.g. `.598 (.582 to .615)`; a dash if it is unknown or undefined."""
    value, interval = figures["tau_b"], figures["tau_b_ci"]
    if value is None or math.isnan(value):
        return "-"
    low, high = interval or (None, None)
    return f"{value:.3f}" + ("" if low is None else f" ({low:.3f} to {high:.3f})")
