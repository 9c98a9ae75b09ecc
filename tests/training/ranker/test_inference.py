"""Finished rankers: scores in the order of the prompts, from either form of a checkpoint."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lengthwise.errors import ConfigError, DataError
from tests.training.drawn import generate
from training.config import TrainConfig
from training.ranker import inference
from training.ranker.encoder import build_scorer, save_scorer
from training.ranker.module import LengthRanker
from training.ranker.trainer import make_trainer, trainer_arguments

PROMPTS = [record.prompt for record in generate(40, seed=3)[0]]


@pytest.fixture
def ranker(tiny_bert: Path, tmp_path: Path) -> LengthRanker:
    save_scorer(
        tmp_path / "logged", *build_scorer(str(tiny_bert), "mean", seed=1, max_prompt_tokens=9)
    )
    return inference.load_ranker(tmp_path / "logged", TrainConfig())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*num_workers")
def test_predictions_and_tau_b_are_those_of_the_scorer(ranker: LengthRanker) -> None:
    settings = TrainConfig().with_trainer(accelerator="cpu", precision="32-true", logger=False)
    trainer = make_trainer(trainer_arguments(settings), [], None)
    expected = ranker.score(PROMPTS)
    assert inference.predict(trainer, ranker, PROMPTS) == pytest.approx(expected, abs=1e-6)
    found = inference.test(trainer, ranker, PROMPTS, np.exp(expected))
    assert found == {"test/tau_b": pytest.approx(1.0)}


def test_what_is_no_checkpoint_is_refused_by_its_path(tmp_path: Path) -> None:
    torch.save({"epoch": 1}, tmp_path / "other.ckpt")
    for name in ("none.ckpt", "other.ckpt"):
        with pytest.raises(DataError, match=f"{name}: this is no checkpoint"):
            inference.load_ranker(tmp_path / name, TrainConfig())
    with pytest.raises(ConfigError, match="holds no trained ranker"):
        inference.load_ranker(tmp_path, TrainConfig())
