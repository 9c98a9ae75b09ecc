"""Scores of prompts by an exported model, the same floats as the service's. No torch."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

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
    """Return the scores of prompts by a bundle, higher = longer. Shape (N,).

    In a trace of MLflow, such as `mlflow.start_span` makes, the steps are spans.
    """
    manifest = bundle.manifest
    with _span("load", model=manifest.name, revision=manifest.revision, precision=precision):
        tokenizer = PromptTokenizer.of(bundle)
        scorer = OnnxScorer(bundle.model_path(precision), pad_id=tokenizer.pad_id)
    with _span("tokenize", prompts=len(prompts)):
        tokenized = tokenizer.tokenize(prompts)
    if count := sum(prompt.truncated for prompt in tokenized):
        limit = manifest.max_prompt_tokens
        logger.info("%d of %d prompts are cut at %d tokens", count, len(prompts), limit)
    ids = [prompt.ids for prompt in tokenized]
    with _span("score", prompts=len(ids), tokens=sum(map(len, ids))):
        return onnx_scores(scorer, ids)


@contextmanager
def _span(name: str, **attributes: Any) -> Iterator[None]:
    """Context of a span of the active trace; without a trace, nothing, nor an import of MLflow."""
    mlflow: Any = sys.modules.get("mlflow")
    if mlflow is None or mlflow.get_current_active_span() is None:
        yield
        return
    with mlflow.start_span(name, attributes=attributes):
        yield


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
