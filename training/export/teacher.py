"""A bundle as a teacher: its scores of prompts, and its vector of each token. No torch."""

import logging
from collections.abc import Callable, Sequence
from itertools import compress
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import pandas as pd
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from scipy.stats import zscore
from sklearn.decomposition import PCA
from tokenizers import Tokenizer

from lengthwise.bundle import ModelBundle
from lengthwise.errors import BundleError, ConfigError
from scoring_service.ranker.scorer import session_options
from scoring_service.tokenizing import PromptTokenizer
from training.config import SplitConfig, TrainConfig
from training.data.buckets import bucket, pad
from training.export.bundle_scores import on_all_cores, score_prompts
from training.ranker.data_module import COMPONENTS, Teacher

logger = logging.getLogger(__name__)
_SAMPLE: Final = 1000
"""Most prompts whose tokens give the principal components."""
_SAMPLE_TOKENS: Final = 65_536
"""Most tokens of them: a thousand long prompts would take minutes."""


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
    same = (theirs.seed, theirs.by_group) == (mine.seed, mine.by_group)
    if not same or theirs.held_out < mine.held_out:
        raise ConfigError(
            f"the teacher may have learnt prompts that are held out here; give its --split.seed "
            f"{theirs.seed} and --split.by-group {theirs.by_group}, and --split.val-fraction and "
            f"--split.test-fraction of at most {theirs.held_out:g} together"
        )
    return [bundle, *(ModelBundle.load(f"{bundle.path}-{name}") for name in config.data.heads)]


def teach(
    teachers: Sequence[Sequence[ModelBundle]],
    labelled: Sequence[str],
    unlabelled: Sequence[str],
    kept: Path,
    *,
    with_states: bool,
) -> Teacher:
    """Score all prompts by each teacher's bundle of each length, or read scores of a run before.

    Scores are kept in `kept` with the bundles' revisions, for the same bundles and prompts. With
    states the first teacher also gives its vector of each token.
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
        states=_token_states(first, prompts) if with_states else [],
    )


def _encoder(
    bundle: ModelBundle, *, of_tokens: bool
) -> Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]:
    """Return (input_ids, attention_mask) -> the vector of each prompt, or of each of its tokens."""
    for precision in ("auto", "fp32"):  # A dynamic INT8 has no layer Gemm, and other names.
        model = onnx.load(bundle.model_path(precision))
        made = {name: node for node in model.graph.node for name in node.output}
        head = made[made["score"].input[0]] if made["score"].op_type == "Squeeze" else made["score"]
        if head.op_type == "Gemm":
            break
    name = head.input[0]
    if of_tokens:
        while (node := made[name]).op_type in ("Div", "Gather", "ReduceSum"):
            name = node.input[0]
        if node.op_type not in ("Mul", "MatMul"):  # The product of vectors and mask.
            raise BundleError(
                f"{bundle.path} takes no mean over tokens; use another --teacher or "
                "--loss.token-weight 0"
            )
        name = node.input[node.op_type == "MatMul"]
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    session = InferenceSession(model.SerializeToString(), session_options())

    def encode(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        (found,) = session.run([name], {"input_ids": ids, "attention_mask": mask})
        rows: NDArray[np.float32] = found[mask.astype(bool)] if of_tokens else found
        return rows.reshape(len(rows), -1)

    return encode


def _token_states(bundle: ModelBundle, prompts: Sequence[str]) -> list[NDArray[np.float16]]:
    """Return the principal components of the vector of each token, of variance 1, (L, M)."""
    reader = PromptTokenizer.of(bundle)
    ids = [prompt.ids for prompt in reader.tokenize(prompts)]
    encode, states = _encoder(bundle, of_tokens=True), [np.empty(0, np.float16)] * len(ids)
    # Prompts stand in the order of their hashes, so the first ones are a sample.
    within = np.cumsum([len(each) for each in ids[:_SAMPLE]]) <= _SAMPLE_TOKENS
    first = np.concatenate([encode(*pad([each], 0)) for each in compress(ids, within)])
    components = PCA(min(COMPONENTS, *first.shape), whiten=True, random_state=0).fit(first)

    def keep(members: NDArray[np.int64]) -> None:
        found = components.transform(encode(*pad([ids[n] for n in members], 0)))
        ends = np.cumsum([len(ids[n]) for n in members])
        parts = np.split(found.astype(np.float16), ends[:-1])
        for n, part in zip(members, parts, strict=True):
            states[n] = part

    on_all_cores(keep, bucket(ids, 16), "batches of prompts read token by token")
    return states


def _token_vectors(bundle: ModelBundle, tokenizer: Tokenizer) -> NDArray[np.float32]:
    """Return the vector that the bundle's model makes of each token alone, (V, H)."""
    encode = _encoder(bundle, of_tokens=False)
    around, tokens = tokenizer.encode("").ids, range(tokenizer.get_vocab_size())
    # Beside a token stands what the tokenizer puts around a text, or the token once more.
    rows = np.array([[*around[:1], each, *(around[1:] or [each])] for each in tokens])
    parts = np.array_split(rows, len(rows) // 64 + 1)
    return np.concatenate([encode(part, np.ones_like(part)) for part in parts])
