"""Scores of prompts by an exported model, the same floats as the service's. No torch."""

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from lengthwise.bundle import ModelBundle
from lengthwise.progress import Progress
from scoring_service.cost_table import is_batch_invariant
from scoring_service.ranker.scorer import OnnxScorer
from scoring_service.tokenizing import PromptTokenizer
from training.data.buckets import bucket

logger = logging.getLogger(__name__)


def score_prompts(
    bundle: ModelBundle, prompts: Sequence[str], precision: str = "auto"
) -> NDArray[np.float64]:
    """Return the scores of prompts by a bundle, higher = longer. Shape (N,)."""
    tokenizer = PromptTokenizer.of(bundle)
    tokenized = tokenizer.tokenize(prompts)
    if count := sum(prompt.truncated for prompt in tokenized):
        text = "%d of %d prompts are cut at %d tokens"
        logger.info(text, count, len(prompts), tokenizer.max_tokens)
    scorer = OnnxScorer(bundle.model_path(precision), pad_id=tokenizer.pad_id)
    return onnx_scores(scorer, [prompt.ids for prompt in tokenized])


def onnx_scores(scorer: OnnxScorer, ids: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Return the scores in the order of `ids`, from length-sorted batches of 16 where possible.

    Dynamic INT8 takes its scales from the whole batch, so that every prompt has a run of its own,
    as in the service. A run uses one thread; the batches are spread over all cores.
    """
    scores = np.empty(len(ids))
    largest_id = max((max(prompt) for prompt in ids), default=0)
    longest = max((len(prompt) for prompt in ids), default=1)
    size = 16 if is_batch_invariant(scorer.score, longest, largest_id + 1) else 1

    def score(members: NDArray[np.int64]) -> None:
        scores[members] = scorer.score([ids[n] for n in members])

    on_all_cores(score, bucket(ids, size), "batches of prompts scored")
    return scores


def on_all_cores(
    run: Callable[[NDArray[np.int64]], None], batches: Sequence[NDArray[np.int64]], done: str
) -> None:
    """Call `run` with every batch, from a thread per core; `done` ends the progress line."""
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
        Progress(len(batches), log=logger.info) as progress,
    ):
        for _ in pool.map(run, batches):  # raises the error of a batch
            progress.step(done)
