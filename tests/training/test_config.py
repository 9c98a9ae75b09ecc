"""Settings: each wrong value is refused by its name, and the configuration survives JSON."""

import json
from dataclasses import asdict, replace

import pytest

from lengthwise.errors import ConfigError
from training.config import (
    DataConfig,
    LossConfig,
    OptimConfig,
    SplitConfig,
    TrainConfig,
    config_from,
)


@pytest.mark.parametrize(
    ("kind", "setting", "wrong", "right"),
    [
        (DataConfig, "max_prompt_tokens", 2, 3),
        (DataConfig, "held_out_models", 1.0, 0.99),
        (DataConfig, "held_out_models", -0.1, 0.0),
        (LossConfig, "delta", 1.0, 0.99),
        (LossConfig, "delta", -0.1, 0.0),
        (LossConfig, "margin", 0.0, 0.01),
        (LossConfig, "pairs_per_prompt", 0.0, 0.01),
        (LossConfig, "log_length_weight", -0.1, 0.0),
        (OptimConfig, "ema_decay", 1.0, 0.9),
        (OptimConfig, "ema_decay", 0.0, None),
        (OptimConfig, "head_lr", 0.0, 1e-9),
        (OptimConfig, "encoder_lr", -1e-9, 0.0),
        (OptimConfig, "warmup_fraction", 1.0, 0.0),
        (SplitConfig, "val_fraction", 0.0, 0.01),
        (SplitConfig, "test_fraction", 0.5, 0.49),
        (SplitConfig, "train_prompts", 1, 2),
        (SplitConfig, "val_prompts", 1, None),
        (SplitConfig, "test_prompts", 0, 2),
        (TrainConfig, "batch_size", 1, 2),
        (TrainConfig, "micro_batch_size", 0, 1),
        (TrainConfig, "threads", 0, 1),
    ],
)
def test_a_wrong_setting_is_named_and_its_neighbour_is_taken(kind, setting, wrong, right):
    with pytest.raises(ConfigError, match=f"{setting} is "):
        kind(**{setting: wrong})
    assert getattr(kind(**{setting: right}), setting) == right


def test_a_length_is_learnt_once_and_by_pairs_only_alone():
    with pytest.raises(ConfigError, match="name each once"):
        DataConfig(heads=("answer_tokens", "answer_tokens"))
    two = DataConfig(heads=("answer_tokens",))
    assert TrainConfig(data=two).data.heads == ("answer_tokens",)
    with pytest.raises(ConfigError, match="drawn by one length"):
        TrainConfig(data=two, loss=LossConfig(objective="pairs"))
    sets = DataConfig(dataset="a", also=("b*2", "c"), head_per_dataset=True)
    assert sets.orders == ("a", "b", "c")
    with pytest.raises(ConfigError, match="drawn by one length"):
        TrainConfig(data=sets, loss=LossConfig(objective="pairs"))
    for wrong in (
        {"data": replace(sets, heads=("answer_tokens",))},
        {"loss": LossConfig(teacher_weight=1)},
    ):
        with pytest.raises(ConfigError, match="no teacher"):
            TrainConfig(**{"data": sets} | wrong)


def test_a_configuration_comes_back_from_json_with_its_tuples():
    data = DataConfig(also=("a*2", "b"), heads=("answer_tokens",))
    config = replace(TrainConfig(data=data), split=SplitConfig(seed=3))
    assert config_from(json.loads(json.dumps(asdict(config)))) == config
    former = {**asdict(config), "epochs": 3, "precision": "auto", "patience": None}
    former["optim"] = {**former["optim"], "clip_norm": 1.0}
    assert config_from(former) == config  # of an earlier version


def test_validations_part_an_epoch_by_the_trainers_interval():
    assert TrainConfig().validations_per_epoch == 4
    for interval, parts in {0.1: 10, 1.0: 1, 7.0: 1, 0.0: 1, "00:01:00:00": 1, None: 1}.items():
        assert (
            TrainConfig().with_trainer(val_check_interval=interval).validations_per_epoch == parts
        )
