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
from torch import Tensor
from torch.utils.data import DataLoader

from lengthwise.errors import DataError
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
    try:
        # With other classes than those of weights a checkpoint could run code when it is read.
        ranker: LengthRanker = LengthRanker.load_from_checkpoint(
            place, map_location="cpu", weights_only=True
        )
    except (OSError, KeyError, TypeError, RuntimeError, UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"this is no checkpoint of a ranker ({reason})", path=place) from error
    ranker.scorer, ranker.labels = ranker.scorer.only(0), ranker.labels[:1]
    return ranker


class FinalPrompts(L.LightningDataModule):  # type: ignore[misc]
    """Prompts for a finished ranker, with their lengths in tokens to test it by."""

    def __init__(
        self, ranker: LengthRanker, prompts: Sequence[str], lengths_N: NDArray[np.float64]
    ) -> None:
        super().__init__()
        self.ranker, self.lengths_N = ranker, lengths_N
        self.ids = tokenize(ranker.tokenizer, prompts).ids
        self.pad_id = int((ranker.tokenizer.padding or {"pad_id": 0})["pad_id"])

    def test_dataloader(self) -> PromptBatches:
        lengths_NK = self.lengths_N[:, None]
        return PromptBatches(self.ids, lengths_NK, self.pad_id, self.ranker.config, shuffle=False)

    def predict_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Return (input_ids, attention_mask) of prompts of similar length; see `in_order`."""
        padded = (pad([self.ids[n] for n in members], self.pad_id) for members in self._buckets)
        batches: Any = [(torch.from_numpy(ids), torch.from_numpy(mask)) for ids, mask in padded]
        return DataLoader(batches, batch_size=None)

    def in_order(self, scores: Sequence[Tensor]) -> NDArray[np.float64]:
        """Return predicted scores in the order of the prompts, (N,)."""
        places = np.argsort(np.concatenate(self._buckets))
        return np.asarray(torch.cat(list(scores)).numpy()[places], np.float64)

    @property
    def _buckets(self) -> list[NDArray[np.int64]]:
        return bucket(self.ids, 16)


def predict(trainer: L.Trainer, prompts: FinalPrompts) -> NDArray[np.float64]:
    """Return the score of each prompt, higher = longer, (N,)."""
    found: Any = trainer.predict(prompts.ranker, datamodule=prompts)
    return prompts.in_order(found)


def test(trainer: L.Trainer, prompts: FinalPrompts) -> dict[str, float]:
    """Return `test/tau_b` of the ranker, and Lightning's other metrics."""
    (found,) = trainer.test(prompts.ranker, datamodule=prompts, verbose=False)
    return {str(name): float(value) for name, value in found.items()}


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
