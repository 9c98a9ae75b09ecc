"""Recipes say what they promise, and survive the trip through a manifest."""

import json
from dataclasses import asdict, replace

import pytest

from lengthwise.errors import ConfigError
from training.config import TrainConfig, config_from
from training.data.cards import read_card
from training.recipes import RECIPES, recipe, student_of


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_is_documented_and_comes_back_from_json(name):
    config = recipe(name)
    assert RECIPES[name][0]
    assert config.name == name
    assert config_from(json.loads(json.dumps(asdict(config)))) == config
    for dataset in (config.data.dataset, *config.data.also):
        read_card(dataset.partition("*")[0])


def test_pars_is_the_protocol_of_the_paper():
    config = recipe("pars")
    assert config.encoder.backbone == "bert"
    assert config.encoder.pooling == "pooler"
    assert (config.loss.objective, config.loss.delta, config.loss.margin) == ("pairs", 0.2, 1.0)
    optim = config.optim
    assert (optim.encoder_lr, optim.head_lr, optim.decay) == (2e-5, 2e-5, False)
    assert optim.weight_decay == 0
    assert config.batch_size == 2 * 128
    assert config.trainer["max_epochs"] == 5
    assert config.trainer["gradient_clip_val"] is None
    assert (config.split.train_prompts, config.split.test_prompts) == (40_000, 5_000)


def test_what_shortens_a_ranker_shortens_its_student():
    demo = recipe("demo")
    usual = student_of(demo)
    assert (usual.trainer["max_epochs"], usual.data.max_unlabelled) == (6, 12_000)
    short = replace(demo, split=replace(demo.split, train_prompts=500))
    short = student_of(short.with_trainer(max_epochs=1, max_steps=7, logger=False))
    assert short.data.max_unlabelled == 1500
    changed = {"max_epochs": 3, "max_steps": 7, "logger": False}
    assert short.trainer == dict(usual.trainer) | changed


def test_a_manifest_of_another_version_is_refused():
    values = asdict(TrainConfig())
    with pytest.raises(ConfigError, match="not a training configuration"):
        config_from(values | {"loss": {"objectif": "pairs"}})
    with pytest.raises(ConfigError, match="not a training configuration"):
        config_from({})
