"""`python -m training recalibrate`: fit a bundle's score -> length curves to another model."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from scoring_service.bundle import MANIFEST, ModelBundle
from scoring_service.errors import ConfigError
from training.command_line import configure_logging, make_parser
from training.commands.evaluate import add_table_arguments, read_prompts, table_options
from training.data.labels import LabelledPrompt
from training.evaluation.calibration import calibrate, per_response
from training.export.scores import score_prompts

DESCRIPTION: Final = """Teach a bundle what its scores mean for another model: no retraining.

About 200 responses of the new model are enough. The curves are added to the bundle under the new
model's name; its scores, files and revision stay as they are.

example:
  python -m training recalibrate --bundle mlruns/demo/bundle --target-model llama-3-8b \\
      --data responses.parquet --length-column output_tokens
"""

logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Entry point of the command."""
    parser = make_parser(
        "recalibrate", "--bundle DIR --target-model NAME --data FILE [options]", DESCRIPTION
    )
    parser.add_argument("--bundle", type=str, required=True, help="folder of the model bundle")
    parser.add_argument("--target-model", type=str, required=True, help="name the curves get")
    parser.add_argument(
        "--out", type=str | None, help="folder of the new bundle; default: the same"
    )
    add_table_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the curves as one JSON line")
    arguments = parser.parse_args(list(argv))
    configure_logging()
    if not arguments.target_model.strip():
        raise ConfigError("target_model is empty; name the model that gave the responses")
    bundle = ModelBundle.load(arguments.bundle)
    prompts = read_prompts(table_options(arguments), bundle.manifest.label)
    out = Path(arguments.out or arguments.bundle)
    entry = recalibrate(bundle, prompts, arguments.target_model, out)
    if arguments.json:
        print(json.dumps({"target_model": arguments.target_model, **entry}, allow_nan=False))
    else:
        print(f"{out}: {arguments.target_model} calibrated on {entry['rows']} responses")
    return 0


def recalibrate(
    bundle: ModelBundle, prompts: Sequence[LabelledPrompt], target_model: str, out: Path
) -> dict[str, Any]:
    """Write the bundle to `out` with one more calibration; returns its entry.

    Raises:
        DataError: too few responses.
    """
    scores = score_prompts(bundle, [item.prompt for item in prompts])
    entry = calibrate(*per_response(scores, prompts))
    manifest = replace(
        bundle.manifest, calibration={**bundle.manifest.calibration, target_model: entry}
    )

    def fill(folder: Path) -> None:
        shutil.copytree(
            bundle.path, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST)
        )

    ModelBundle.write(out, manifest, fill)
    return entry
