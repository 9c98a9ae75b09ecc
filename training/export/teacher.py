"""A bundle as a teacher: its scores of prompts, and its vector of each token. No torch."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from scipy.stats import zscore
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
    return [bundle, *(ModelBundle.load(f"{bundle.path}-{name}") for name in config.data.heads)]


def teach(
    teachers: Sequence[Sequence[ModelBundle]],
    labelled: Sequence[str],
    unlabelled: Sequence[str],
    kept: Path,
) -> Teacher:
    """Score all prompts by each teacher's bundle of each length, or read scores of a run before.

    Scores are kept in `kept` with the bundles' revisions, for the same bundles and prompts.
    """
    prompts, bundles = [*labelled, *unlabelled], [b for each in teachers for b in each]
    revisions = [bundle.manifest.revision for bundle in bundles]
    found = pd.read_parquet(kept) if kept.is_file() else pd.DataFrame()
    if list(found.columns) != ["prompt", *revisions] or found["prompt"].tolist() != prompts:
        logger.info("scoring %d prompts by %d teachers", len(prompts), len(teachers))
        scores = [score_prompts(bundle, prompts) for bundle in bundles]
        found = pd.DataFrame({"prompt": prompts} | dict(zip(revisions, scores, strict=True)))
        kept.parent.mkdir(parents=True, exist_ok=True)
        found.to_parquet(kept)
    scores_NM = found[revisions].to_numpy(np.float64)
    for bundle, spread in zip(bundles, scores_NM.std(axis=0), strict=True):
        if spread == 0:
            raise BundleError(f"{bundle.path} gives every prompt one score; use another --teacher")
    first = bundles[0]
    tokenizer = Tokenizer.from_file(str(first.tokenizer_path))
    return Teacher(
        revision=" ".join(each[0].manifest.revision for each in teachers),
        tokenizer=tokenizer,
        embeddings_VH=_token_vectors(first, tokenizer),
        unlabelled=unlabelled,
        scores_NK=zscore(zscore(scores_NM).reshape(len(prompts), len(teachers), -1).mean(axis=1)),
    )


def _token_vectors(bundle: ModelBundle, tokenizer: Tokenizer) -> NDArray[np.float32]:
    """Return the vector that the bundle's model makes of each token alone, (V, H)."""
    for precision in ("auto", "fp32"):  # A dynamic INT8 has no layer Gemm, and other names.
        model = onnx.load(bundle.model_path(precision))
        made = {name: node for node in model.graph.node for name in node.output}
        head = made[made["score"].input[0]] if made["score"].op_type == "Squeeze" else made["score"]
        if head.op_type == "Gemm":
            break
    model.graph.output.append(onnx.ValueInfoProto(name=head.input[0]))
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    around, tokens = tokenizer.encode("").ids, range(tokenizer.get_vocab_size())
    # Beside a token stands what the tokenizer puts around a text, or the token once more.
    rows = np.array([[*around[:1], each, *(around[1:] or [each])] for each in tokens])
    parts = np.array_split(rows, len(rows) // 64 + 1)
    feeds = ({"input_ids": part, "attention_mask": np.ones_like(part)} for part in parts)
    found = [session.run([head.input[0]], feed)[0] for feed in feeds]
    return np.asarray(np.concatenate(found), np.float32).reshape(len(rows), -1)
