"""A finished ranker and prompts -> scores and tau_b, by Lightning's Trainer.

Shapes: N prompts.
"""

from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from lengthwise.errors import DataError, raised_as
from training.config import TrainConfig
from training.data.buckets import bucket, pad
from training.ranker.data_module import PromptBatches, tokenize
from training.ranker.encoder import load_scorer
from training.ranker.module import LengthRanker


def load_ranker(place: Path, config: TrainConfig) -> LengthRanker:
    """Read a ranker from Lightning's checkpoint, or from the folder that a run logged.

    Of several lengths it has the first. `config` is that of the run, for a folder.
    """
    if place.is_dir():
        encoder = load_scorer(place)
        scale = {"log_mean": [0.0], "log_sd": [1.0]}
        return LengthRanker(
            config, encoder=encoder, scale=scale, encoder_lr=0.0, total_steps=1, steps_per_epoch=1
        )
    kinds = OSError, KeyError, TypeError, RuntimeError, UnpicklingError
    with raised_as(DataError, "this is no checkpoint of a ranker ({})", *kinds, path=place):
        # With other classes than those of weights a checkpoint could run code when it is read.
        ranker: LengthRanker = LengthRanker.load_from_checkpoint(
            place, map_location="cpu", weights_only=True
        )
    ranker.scorer, ranker.labels = ranker.scorer.only(0), ranker.labels[:1]
    return ranker


def predict(
    trainer: L.Trainer, ranker: LengthRanker, prompts: Sequence[str]
) -> NDArray[np.float64]:
    """Return the score of each prompt, higher = longer, (N,)."""
    ids, pad_id = tokenize(ranker.tokenizer, prompts).ids, _pad_id(ranker)
    buckets = bucket(ids, 16)
    padded = (pad([ids[n] for n in members], pad_id) for members in buckets)
    batches: Any = [(torch.from_numpy(rows), torch.from_numpy(mask)) for rows, mask in padded]
    scores: Any = trainer.predict(ranker, DataLoader(batches, batch_size=None))
    places = np.argsort(np.concatenate(buckets))
    return np.asarray(torch.cat(scores).numpy()[places], np.float64)


def test(
    trainer: L.Trainer, ranker: LengthRanker, prompts: Sequence[str], lengths_N: NDArray[np.float64]
) -> dict[str, float]:
    """Return `test/tau_b` by lengths in tokens, and Lightning's other metrics."""
    ids, lengths_NK = tokenize(ranker.tokenizer, prompts).ids, lengths_N[:, None]
    batches = PromptBatches(ids, lengths_NK, _pad_id(ranker), ranker.config, shuffle=False)
    (found,) = trainer.test(ranker, batches, verbose=False)
    return {str(name): float(value) for name, value in found.items()}


def _pad_id(ranker: LengthRanker) -> int:
    return int((ranker.tokenizer.padding or {"pad_id": 0})["pad_id"])


class CheckpointModel:
    """The checkpoint of a run as a model of MLflow, which its `MLmodel` file names.

    model = mlflow.pyfunc.load_model("runs:/RUN/checkpoint")
    model.predict(pandas.DataFrame({"prompt": ["Write a poem.", "Say yes."]}))     # a column score
    """

    def __init__(self, path: str) -> None:
        self._ranker = load_ranker(Path(path), TrainConfig())

    def predict(self, prompts: Any, params: dict[str, Any] | None = None) -> Any:
        """Return a frame with the score of each prompt of a frame, higher = longer.

        MLflow passes `params`, which have no effect.
        """
        scores = self._ranker.score([str(prompt) for prompt in prompts["prompt"]])
        return pd.DataFrame({"score": scores}, index=prompts.index)


_load_pyfunc = CheckpointModel
"""MLflow's name for the loader of a model."""
