"""Bundles in a store: found by reference, and listed with their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.bundle import Manifest, ModelBundle
from lengthwise.mlflow_store import CHAMPION

if TYPE_CHECKING:
    from training.release.tracking import Store


def open_store(mlruns_dir: str) -> Store:
    """Open the store at that place."""
    # MLflow takes seconds to import.
    from training.release.tracking import Store

    return Store(mlruns_dir)


def find_bundle(reference: str, mlruns_dir: str) -> ModelBundle:
    """Return a bundle by its folder, or by NAME@champion or NAME/VERSION in the registry."""
    name, _, version = reference.removeprefix("models:/").replace("@", "/").rpartition("/")
    is_number = version.isascii() and version.isdigit()
    if Path(reference).exists() or not name or not (is_number or "@" in reference):
        return ModelBundle.load(reference)
    with open_store(mlruns_dir) as store:
        return ModelBundle.load(store.folder(store.version(name, version).source))


def list_store(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Return runs and versions with the figures in their tags; None without a bundle."""
    runs = [
        {
            "run_id": run.info.run_id,
            "name": run.info.run_name or "",
            "status": run.info.status,
            "started": datetime.fromtimestamp(run.info.start_time // 1000, UTC).isoformat(),
            **_figures_in(run.data.tags),
        }
        for run in store.runs()
    ]
    versions = [
        {
            "name": each.name,
            "version": str(each.version),
            "champion": CHAMPION in each.aliases,
            "run_id": each.run_id or "",
            "promoted_by": each.tags.get("promoted_by"),
            "verdict": each.tags.get("verdict"),
            **_figures_in(each.tags),
        }
        for each in store.versions()
    ]
    return {"runs": runs, "versions": versions}


def tags_of(manifest: Manifest) -> dict[str, str]:
    """Return the figures of a bundle as tags of its run and of its registered version."""
    figures = figures_of(manifest)
    low, high = figures.pop("tau_b_ci") or (None, None)
    undefined = ", ".join(key for key, value in manifest.metrics.items() if value is None) or None
    values = figures | {"tau_b_low": low, "tau_b_high": high, "undefined": undefined}
    return {key: str(value) for key, value in values.items() if value is not None}


def _figures_in(tags: Mapping[str, str]) -> dict[str, Any]:
    low, high = tags.get("tau_b_low"), tags.get("tau_b_high")
    return {
        "dataset": tags.get("dataset"),
        "revision": tags.get("revision"),
        "tau_b": float(tags["tau_b"]) if "tau_b" in tags else None,
        "tau_b_ci": [float(low), float(high)] if low and high else None,
    }


def figures_of(manifest: Manifest) -> dict[str, Any]:
    """Return the data set, the revision and tau_b of a bundle."""
    return {
        "dataset": manifest.dataset.get("id"),
        "revision": manifest.revision,
        "tau_b": manifest.metrics.get("tau_b"),
        "tau_b_ci": manifest.metrics.get("tau_b_ci"),
    }


def show_tau_b(figures: Mapping[str, Any]) -> str:
    """Return e.g. `.598 (.582 to .615)` or `undefined`; a dash without a bundle."""
    value, interval = figures["tau_b"], figures["tau_b_ci"]
    if value is None or math.isnan(value):
        return "undefined" if figures.get("revision") else "-"
    low, high = interval or (None, None)
    return f"{value:.3f}" + ("" if low is None else f" ({low:.3f} to {high:.3f})")
