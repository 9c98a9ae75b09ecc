"""`python -m training export`: write the bundle of a run into a folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from lengthwise.bundle import MANIFEST, ModelBundle
from lengthwise.errors import ConfigError
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.release.registry import figures_of, open_store


@dataclass(frozen=True, kw_only=True)
class ExportOptions(StoreOptions):
    """A run, and the folder for its bundle."""

    run: str
    """Id of an MLflow run."""
    out: Path
    """Folder of the bundle; an older bundle there is replaced."""


def main(options: ExportOptions, output: OutputOptions) -> None:
    """Write the bundle of a run into a folder, verified; of several lengths, the first.

    example:
      python -m training export --run 1e0fe0bcf2f9495ba1af7db95f5aa149 --out ranker
    """
    with open_store(options.mlruns_dir) as store:
        bundle = copy_bundle(store, options)
    line = f"{bundle.path}: {bundle.manifest.name} revision {bundle.manifest.revision}"
    result = figures_of(bundle.manifest) | {"bundle": str(bundle.path)}
    serve = f"python -m scoring_service serve --bundle {quote(str(bundle.path))}"
    print_result(result, output, lambda: print(line), serve)


def copy_bundle(store: Any, options: ExportOptions) -> ModelBundle:
    """Copy the bundle as the run logged it; an older bundle in its place is replaced."""
    bundle = ModelBundle.load(store.logged_folder(options.run, "bundle"))
    _require_replaceable(options.out)

    def fill(folder: Path) -> None:
        for name in bundle.manifest.files:
            shutil.copy2(bundle.path / name, folder / name)

    return ModelBundle.write(options.out, bundle.manifest, fill)


def _require_replaceable(out: Path) -> None:
    if out.exists() and not (out / MANIFEST).is_file() and (out.is_file() or any(out.iterdir())):
        raise ConfigError(f"{out} holds something that is not a bundle; choose another --out")
