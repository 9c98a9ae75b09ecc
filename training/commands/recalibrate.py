"""`python -m training recalibrate`: fit a bundle's score -> length curves to another model."""

import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lengthwise.bundle import MANIFEST, ModelBundle, bundle_folder
from lengthwise.errors import ConfigError
from training.commands.options import BundleOptions, OutputOptions, print_result
from training.data.labels import TableOptions, read_prompts, texts
from training.evaluation.calibration import calibrate, per_response
from training.export.bundle_scores import score_prompts
from training.release.registry import find_bundle


@dataclass(frozen=True, kw_only=True)
class RecalibrateOptions(BundleOptions):
    """The bundle, and the name of the further model."""

    target_model: str
    """Name of the curves."""
    out: Path | None = None
    """Folder of the new bundle; default: the same, of a bundle in a folder."""

    def __post_init__(self) -> None:
        if not self.target_model.strip():
            raise ConfigError("target_model is empty; name the model that gave the responses")


def main(options: RecalibrateOptions, table: TableOptions, output: OutputOptions) -> None:
    """Fit a bundle's score -> length curves to another model, without training.

    About 200 responses of the new model are enough. The curves are added to the bundle under the
    new model's name; its scores, files and revision stay as they are.

    example:
      python -m training recalibrate --bundle mlruns/demo/bundle --target-model llama-3-8b \\
          --data responses.parquet --length-column output_tokens
    """
    if options.out is None and not Path(options.bundle).is_dir():
        raise ConfigError(f"{options.bundle} is no folder that can be written; give --out FOLDER")
    bundle = find_bundle(options.bundle, options.mlruns_dir)
    prompts = read_prompts(table, bundle.manifest.label)
    entry = calibrate(*per_response(score_prompts(bundle, texts(prompts)), prompts))
    curves = {**bundle.manifest.calibration, options.target_model: entry}
    out, others = options.out or bundle_folder(options.bundle), shutil.ignore_patterns(MANIFEST)
    copy = partial(shutil.copytree, bundle.path, dirs_exist_ok=True, ignore=others)
    ModelBundle.write(out, replace(bundle.manifest, calibration=curves), copy)
    line = f"{out}: {options.target_model} calibrated on {entry['rows']} responses"
    result = {"target_model": options.target_model, **entry}
    print_result(result, output, lambda: print(line))
