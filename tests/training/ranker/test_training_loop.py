"""The training loop: settings checked first, and checkpoints that score and hold no code."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lengthwise.errors import ConfigError, DataError
from tests.training.drawn import generate
from tests.training.prompts import labels, splits_of
from training.config import DataConfig, EncoderConfig, LossConfig, TrainConfig
from training.data.labels import texts
from training.data.splits import Splits
from training.ranker.module import LengthRanker
from training.ranker.trainer import BEST, LAST
from training.ranker.training_loop import Trained, load_encoder, train


def test_an_unknown_objective_is_refused_before_any_loading() -> None:
    config = TrainConfig(
        loss=LossConfig(objective="pairz"), encoder=EncoderConfig(backbone="/no/such/model")
    )
    with pytest.raises(ConfigError, match=r"loss\.objective is 'pairz'; use one of pairs, all-p"):
        load_encoder(config, 1)


def test_an_encoder_has_a_head_per_length_and_a_tokenizers_limit(tiny_bert: Path) -> None:
    scorer, tokenizer = load_encoder(TrainConfig(encoder=EncoderConfig(backbone=str(tiny_bert))), 2)
    assert scorer.head.out_features == scorer.length_head.out_features == 2
    assert (tokenizer.truncation or {})["max_length"] == 128


class Malicious:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def learnt(
    backbone: Path, folder: Path, *, resume: bool = False, **changes: Any
) -> tuple[Trained, Splits]:
    """A ranker of the tiny encoder on 60 synthetic prompts."""
    items = labels(generate(90, seed=1)[0])
    rows = (range(60), range(60, 75), range(75, 90))
    splits = splits_of(*map(items.select, rows))
    changes = {"batch_size": 8, "trainer": {"max_epochs": 1}, **changes}
    config = TrainConfig(
        encoder=EncoderConfig(backbone=str(backbone)),
        data=DataConfig(max_prompt_tokens=32),
        **changes,
    )
    heads = [splits] * (1 + len(config.data.heads))
    folder.mkdir(exist_ok=True)
    encoder = load_encoder(config, len(heads))
    return train(config, encoder, heads, folder, False, resume=resume), splits


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning on torch 2.13
def test_a_checkpoint_with_code_in_it_is_refused_and_runs_none(tiny_bert, tmp_path):
    learnt(tiny_bert, tmp_path)
    content = torch.load(tmp_path / LAST, weights_only=True)
    torch.save({**content, "progress": Malicious(tmp_path / "made")}, tmp_path / LAST)
    with pytest.raises(DataError, match=r"last\.ckpt: .*train anew"):
        learnt(tiny_bert, tmp_path, resume=True)
    assert not (tmp_path / "made").exists()


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning on torch 2.13
def test_a_checkpoint_is_a_ranker_that_scores_on_its_own(tiny_bert: Path, tmp_path: Path) -> None:
    trained, splits = learnt(tiny_bert, tmp_path)
    scores = LengthRanker.load_from_checkpoint(tmp_path / BEST).score(texts(splits.test))
    with torch.inference_mode():
        one = trained.tokenizer.encode(splits.test[0]["prompt"])
        alone = trained.scorer(torch.tensor([one.ids]), torch.tensor([one.attention_mask]))
    assert scores[0] == pytest.approx(float(alone), abs=1e-5)
