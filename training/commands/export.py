"""`python -m training export`: write the bundle of a run into a folder."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from lengthwise.bundle import MANIFEST, Manifest, ModelBundle, read_manifest
from lengthwise.errors import BundleError, ConfigError
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.data.provenance import load_training_splits
from training.release.registry import figures_of, open_store, show_tau_b

# In place of TYPE_CHECKING, whose block jsonargparse runs: --help would take seconds.
MYPY: Final = False
if MYPY:
    from training.ranker.training_loop import Trained
    from training.release.tracking import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(StoreOptions):
    """A run, and the folder for its bundle."""

    run: str
    """MLflow run; `list` shows them."""
    out: Path
    """Folder of the bundle; an older bundle there is replaced."""
    rebuild: bool = False
    """Export the run's checkpoint again."""
    dataset: str | None = None
    """With --rebuild: the run's table or card, if it moved."""
    data_dir: str | None = None
    """With --rebuild: folder that holds the run's data set."""

    def __post_init__(self) -> None:
        if not self.rebuild and (self.dataset or self.data_dir):
            raise ConfigError("--dataset and --data-dir are read by --rebuild only; add it")


def main(options: ExportOptions, output: OutputOptions) -> None:
    """Write the bundle of a run into a folder, verified; of several lengths, the first.

    --rebuild makes it again from the run's checkpoint, by the export of this version, without
    training. It is measured on the run's own prompts, found again in its data set; no others will
    do, because INT8 takes its scales from training prompts.

    examples:
      python -m training export --run 1e0fe0bcf2f9495ba1af7db95f5aa149 --out ranker
      python -m training export --run 1e0fe0bcf2f9495ba1af7db95f5aa149 --out ranker --rebuild
    """
    with open_store(options.mlruns_dir) as store:
        bundle = (_rebuild if options.rebuild else copy_bundle)(store, options)
    line = f"{bundle.path}: {bundle.manifest.name} revision {bundle.manifest.revision}"
    result = figures_of(bundle.manifest) | {"bundle": str(bundle.path)}
    serve = f"python -m scoring_service serve --bundle {quote(str(bundle.path))}"
    print_result(result, output, lambda: print(line), serve)


def copy_bundle(store: Store, options: ExportOptions) -> ModelBundle:
    """Copy the bundle as the run logged it; an older bundle in its place is replaced."""
    bundle = ModelBundle.load(store.logged_folder(options.run, "bundle"))
    _require_replaceable(options.out)

    def fill(folder: Path) -> None:
        for name in bundle.manifest.files:
            shutil.copy2(bundle.path / name, folder / name)

    return ModelBundle.write(options.out, bundle.manifest, fill)


def _rebuild(store: Store, options: ExportOptions) -> ModelBundle:
    logged = read_manifest(store.logged_folder(options.run, "bundle"))
    _require_replaceable(options.out)
    labelled = load_training_splits(logged, options.dataset, options.data_dir)

    # torch takes seconds to import, and bad input is reported before.
    from training.release.publish import CHECKPOINT, write_bundle

    trained = restore(logged, store.logged_folder(options.run, CHECKPOINT))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    bundle, _ = write_bundle(labelled, trained, options.out, options.run, logged.name)
    if lost := sorted(set(logged.calibration) - set(bundle.manifest.calibration)):
        logger.warning("not calibrated any more for %s; run recalibrate", ", ".join(lost))
    taus = [show_tau_b(figures_of(manifest)) for manifest in (bundle.manifest, logged)]
    logger.info("tau_b %s; as it was logged %s", *taus)
    return bundle


def restore(logged: Manifest, checkpoint: Path) -> Trained:
    """Return the training result of a run, from its checkpoint and its manifest."""
    from training.ranker.encoder import load_scorer
    from training.ranker.training_loop import Trained

    try:
        scorer, tokenizer = load_scorer(checkpoint)
        return Trained(
            scorer=scorer,
            tokenizer=tokenizer,
            num_truncated=logged.dataset["truncated_prompts"],
            history=logged.history,
            num_encoded=logged.metrics["encoder_passes"],
            train_cpu_s=logged.metrics["train_cpu_s"],
            teacher=logged.dataset.get("teacher", {}),
        )
    except (ConfigError, KeyError) as error:
        raise BundleError(
            f"the run logged too little to be exported anew ({error}); train again, or leave out "
            "--rebuild to get its bundle as it was logged"
        ) from error


def _require_replaceable(out: Path) -> None:
    if out.exists() and not (out / MANIFEST).is_file() and (out.is_file() or any(out.iterdir())):
        raise ConfigError(f"{out} holds something that is not a bundle; choose another --out")
