"""A bundle as a teacher: its scores of prompts, its tokenizer and its embeddings. No torch."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
from numpy.typing import NDArray
from onnx import numpy_helper
from tokenizers import Tokenizer

from lengthwise.bundle import ModelBundle
from lengthwise.errors import BundleError, ConfigError
from training.config import SplitConfig, TrainConfig
from training.export.bundle_scores import score_prompts
from training.ranker.data_module import Teacher

logger = logging.getLogger(__name__)


def find_teachers(bundle: ModelBundle, config: TrainConfig) -> list[ModelBundle]:
    """Return the bundle of each length that the student learns: those of one run, side by side.

    Raises:
        ConfigError: the teacher learnt another length, or held-out prompts of the student.
        BundleError: a further length has no bundle.
    """
    label, mine = bundle.manifest.label, config.split
    if label != config.data.label:
        raise ConfigError(f"the teacher's label is {label}; give --data.label {label}")
    theirs = SplitConfig(**bundle.manifest.training["split"])
    if theirs.seed != mine.seed or theirs.held_out < mine.held_out:
        raise ConfigError(
            f"the teacher may have learnt prompts that are held out here; give its --split.seed "
            f"{theirs.seed}, and --split.val-fraction and --split.test-fraction of at most "
            f"{theirs.held_out:g} together"
        )
    folders = [bundle.path.with_name(f"{bundle.path.name}-{name}") for name in config.data.heads]
    return [bundle, *map(ModelBundle.load, folders)]


def teach(
    bundles: Sequence[ModelBundle], labelled: Sequence[str], unlabelled: Sequence[str], kept: Path
) -> Teacher:
    """Score all prompts by the bundle of each length, or read the scores of a run before.

    Scores are written to `kept` with the revisions of the bundles; other bundles or other prompts
    are scored anew.
    """
    prompts, revisions = [*labelled, *unlabelled], [b.manifest.revision for b in bundles]
    found = pd.read_parquet(kept) if kept.is_file() else pd.DataFrame()
    if list(found.columns) != ["prompt", *revisions] or found["prompt"].tolist() != prompts:
        logger.info("scoring %d prompts by the teacher %s", len(prompts), bundles[0].path)
        scores = [score_prompts(bundle, prompts) for bundle in bundles]
        columns = dict(zip(revisions, scores, strict=True))
        found = pd.DataFrame({"prompt": prompts} | columns)
        kept.parent.mkdir(parents=True, exist_ok=True)
        found.to_parquet(kept)
    scores_NK = found[revisions].to_numpy(np.float64)
    spread = scores_NK.std(axis=0)
    if not spread.all():
        raise BundleError(f"{bundles[0].path} gives every prompt one score; use another --teacher")
    first = bundles[0]
    return Teacher(
        revision=first.manifest.revision,
        tokenizer=Tokenizer.from_file(str(first.tokenizer_path)),
        embeddings_VH=_embeddings(first),
        unlabelled=unlabelled,
        scores_NK=(scores_NK - scores_NK.mean(axis=0)) / spread,
    )


def _embeddings(bundle: ModelBundle) -> NDArray[np.float32]:
    """Return the table of an FP32 model that its token ids look up."""
    model = onnx.load(bundle.model_path("fp32"))
    tables = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    found = [each for each in model.graph.initializer if each.name in tables]
    if not found:
        raise BundleError(f"{bundle.path} has no table of embeddings; use another --teacher")
    largest = numpy_helper.to_array(max(found, key=lambda each: np.prod(each.dims)))
    return np.asarray(largest.reshape(len(largest), -1), np.float32)
