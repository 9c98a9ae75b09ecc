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
from scoring_service.tokenizing import PromptTokenizer
from training.config import SplitConfig, TrainConfig
from training.data.buckets import bucket, pad
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
    *,
    with_parts: bool,
) -> Teacher:
    """Score all prompts by each teacher's bundle of each length, or read scores of a run before.

    Scores are kept in `kept` with the bundles' revisions, for the same bundles and prompts. With
    parts the first teacher's models also give the score of each token's vector alone.
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
    reader = PromptTokenizer(first.tokenizer_path, first.manifest.max_prompt_tokens)
    ids = [prompt.ids for prompt in reader.tokenize(prompts)]
    # In the unit of the scores.
    parts = [
        [(part - scores_N.mean()) / scores_N.std() for part in _token_parts(bundle, ids)]
        for bundle, scores_N in zip(teachers[0] if with_parts else (), scores_NM.T, strict=False)
    ]
    return Teacher(
        revision=" ".join(each[0].manifest.revision for each in teachers),
        tokenizer=tokenizer,
        embeddings_VH=_token_vectors(first, tokenizer),
        unlabelled=unlabelled,
        scores_NK=zscore(zscore(scores_NM).reshape(len(prompts), len(teachers), -1).mean(axis=1)),
        parts=[np.stack(each, axis=1, dtype=np.float32) for each in zip(*parts, strict=True)],
    )


def _encoder(
    bundle: ModelBundle,
) -> tuple[InferenceSession, str, NDArray[np.float32], NDArray[np.float32]]:
    """Return the model, its value that holds the tokens' vectors, and its head's weights."""
    for precision in ("auto", "fp32"):  # A dynamic INT8 has no layer Gemm, and other names.
        model = onnx.load(bundle.model_path(precision))
        made = {name: node for node in model.graph.node for name in node.output}
        head = made[made["score"].input[0]] if made["score"].op_type == "Squeeze" else made["score"]
        if head.op_type == "Gemm":
            break
    node = made[head.input[0]]
    while node.op_type in ("Div", "Gather", "ReduceSum"):
        node = made[node.input[0]]
    if node.op_type not in ("Mul", "MatMul"):  # The product of vectors and mask.
        raise BundleError(f"{bundle.path} takes no mean over tokens; use another --teacher")
    states = node.input[node.op_type == "MatMul"]
    model.graph.output.append(onnx.ValueInfoProto(name=states))
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    weight_1H, bias_1 = (constants[name] for name in head.input[1:])
    return session, states, weight_1H[0], bias_1


def _token_parts(bundle: ModelBundle, ids: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
    """Return the head's score of each token's vector, (L,) for each prompt."""
    session, states, weight_H, bias = _encoder(bundle)
    parts = [np.empty(0, np.float32)] * len(ids)
    for members in bucket(ids, 16):
        padded, mask = pad([ids[n] for n in members], 0)
        (found,) = session.run([states], {"input_ids": padded, "attention_mask": mask})
        for n, part in zip(members, found @ weight_H + bias, strict=True):
            parts[n] = part[: len(ids[n])]
    return parts


def _token_vectors(bundle: ModelBundle, tokenizer: Tokenizer) -> NDArray[np.float32]:
    """Return the vector that the bundle's model makes of each token alone, (V, H)."""
    session, states, *_ = _encoder(bundle)
    around, tokens = tokenizer.encode("").ids, range(tokenizer.get_vocab_size())
    # Beside a token stands what the tokenizer puts around a text, or the token once more.
    rows = np.array([[*around[:1], each, *(around[1:] or [each])] for each in tokens])
    parts = np.array_split(rows, len(rows) // 64 + 1)
    feeds = ({"input_ids": part, "attention_mask": np.ones_like(part)} for part in parts)
    return np.concatenate([session.run([states], feed)[0].mean(axis=1) for feed in feeds])
