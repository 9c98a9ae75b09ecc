"""The bundle of a finished run: copied as it was logged, or exported again from its checkpoint."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from lengthwise.bundle import MANIFEST, Manifest, ModelBundle, read_manifest
from lengthwise.errors import BundleError, ConfigError
from training.data.provenance import load_training_splits
from training.release.registry import figures_of, show_tau_b

if TYPE_CHECKING:
    from training.ranker.training_loop import Trained
    from training.release.tracking import Store

logger = logging.getLogger(__name__)


def export(store: Store, run_id: str, out: Path) -> ModelBundle:
    """Copy the bundle of a run to `out`; an older bundle there is replaced."""
    bundle = ModelBundle.load(store.logged_folder(run_id, "bundle"))
    _require_replaceable(out)

    def fill(folder: Path) -> None:
        for name in bundle.manifest.files:
            shutil.copy2(bundle.path / name, folder / name)

    return ModelBundle.write(out, bundle.manifest, fill)


def rebuild(
    store: Store, run_id: str, out: Path, dataset: str | None = None, data_dir: str | None = None
) -> ModelBundle:
    """Export the bundle of a run again to `out` from its checkpoint, without training.

    `dataset` replaces the data set in the settings of the run, as a card or table.
    """
    logged = read_manifest(store.logged_folder(run_id, "bundle"))
    _require_replaceable(out)
    labelled = load_training_splits(logged, dataset, data_dir)

    # torch takes seconds to import, and bad input is reported before.
    from training.release.publish import CHECKPOINT, write_bundle

    trained = restore(logged, store.logged_folder(run_id, CHECKPOINT))
    out.parent.mkdir(parents=True, exist_ok=True)
    bundle, _ = write_bundle(labelled, trained, out, run_id, logged.name)
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
