"""Named experiments: each recipe is one configuration. No I/O."""

from dataclasses import replace
from typing import Final

from lengthwise.errors import ConfigError
from training.config import (
    DataConfig,
    EncoderConfig,
    LossConfig,
    OptimConfig,
    SplitConfig,
    TrainConfig,
    trainer_settings,
)

_FRAMED: Final = 0.3
RECIPES: Final[dict[str, tuple[str, TrainConfig]]] = {
    "demo": (
        "4,000 Alpaca prompts x Vicuna-7B lengths, 2 epochs: minutes on two CPU cores.",
        TrainConfig(
            data=DataConfig(dataset="alpaca-vicuna7b", max_prompt_tokens=64, framed=_FRAMED),
            split=SplitConfig(train_prompts=4000, val_prompts=500, test_prompts=2000),
            student=True,
        ),
    ),
    "quick": (
        "One epoch over all Alpaca prompts x Vicuna-7B lengths: a nightly run on a laptop.",
        TrainConfig(trainer=trainer_settings(max_epochs=1)),
    ),
    "best": (
        "Three epochs over all Alpaca prompts x Vicuna-7B lengths: half an hour on one CPU.",
        TrainConfig(data=DataConfig(framed=_FRAMED), trainer=trainer_settings(max_epochs=3)),
    ),
    "large": (
        "Two epochs of MPNet-base, the paper's size of encoder: ten times the cost of MiniLM.",
        TrainConfig(
            data=DataConfig(framed=_FRAMED),
            encoder=EncoderConfig(backbone="mpnet"),
            optim=OptimConfig(ema_decay=0.995),
        ),
    ),
    "small": (
        "A small ranker from the scores of a large one (--teacher): a tenth of its cost.",
        TrainConfig(
            data=DataConfig(framed=_FRAMED, unlabelled=("alpaca-davinci003", "gpteacher-gpt4")),
            encoder=EncoderConfig(backbone="convolution"),
            loss=LossConfig(teacher_weight=4.0, token_weight=24.0),
            optim=OptimConfig(weight_decay=0.0, ema_decay=0.995),
            # Its products are too small for bf16 to pay.
            trainer=trainer_settings(max_epochs=12, precision="32-true"),
            batch_size=128,
            micro_batch_size=32,
        ),
    ),
    "encoder": (
        "One epoch over every source of lengths, a head each: --encoder.backbone of other runs.",
        TrainConfig(
            data=DataConfig(
                dataset="alpaca-davinci003",
                also=("alpaca-vicuna7b", "gpteacher-gpt4", "alpaca-eval*6"),
                head_per_dataset=True,
                consensus=True,
                held_out_models=0.25,
                max_prompt_tokens=64,
            ),
            split=SplitConfig(val_prompts=800),
            trainer=trainer_settings(max_epochs=1, val_check_interval=0.5),
            batch_size=64,
        ),
    ),
    "agents": (
        "Requests of agents (--data.dataset LOG) by tools, calls and results; split by group.",
        TrainConfig(
            data=DataConfig(description=1, max_prompt_tokens=192),
            split=SplitConfig(by_group=True, val_fraction=0.15, test_fraction=0.2, val_prompts=500),
            trainer=trainer_settings(max_epochs=3),
        ),
    ),
    "multi": (
        "Consensus of 200 models, for a model not among them; a quarter of the models is held out.",
        TrainConfig(
            data=DataConfig(
                dataset="alpaca-eval",
                also=("arena-hard*4", "alpaca-eval*9", "alpaca-vicuna7b"),
                consensus=True,
                held_out_models=0.25,
            ),
            trainer=trainer_settings(max_epochs=1),
        ),
    ),
    "reasoning": (
        "Total, reasoning and answer of reasoning models, by three heads of one encoder.",
        TrainConfig(
            data=DataConfig(
                dataset="planbench-o1",
                also=("misguided-attention*4", "pm-llm-benchmark"),
                model="o1-mini_chat",
                consensus=True,
                heads=("reasoning_tokens", "answer_tokens"),
                max_prompt_tokens=448,
            ),
            # The set is small: larger parts keep the intervals of its figures useful.
            split=SplitConfig(test_fraction=0.25, val_fraction=0.1, val_prompts=100),
            loss=LossConfig(delta=0.25),
            batch_size=16,
        ),
    ),
    "pars": (
        "The paper's protocol: 40,000 prompts, BERT-base, pooler, drawn pairs, constant Adam 2e-5.",
        TrainConfig(
            data=DataConfig(dataset="alpaca-davinci003", repeats="first"),
            # These parts of the set hold as many prompts as the paper's.
            split=SplitConfig(
                val_fraction=0.025, test_fraction=0.115, train_prompts=40_000, test_prompts=5_000
            ),
            encoder=EncoderConfig(backbone="bert", pooling="pooler"),
            loss=LossConfig(objective="pairs", delta=0.2, pairs_per_prompt=10, log_length_weight=0),
            optim=OptimConfig(
                encoder_lr=2e-5, head_lr=2e-5, weight_decay=0, warmup_fraction=0, decay=False
            ),
            trainer=trainer_settings(max_epochs=5, gradient_clip_val=None),
            batch_size=256,  # 128 pairs
            micro_batch_size=256,
            pad_to_limit=True,
        ),
    ),
}
"""Purpose and settings by the name of the recipe."""


def student_of(config: TrainConfig) -> TrainConfig:
    """Return the settings of a small ranker with the data and splits of its teacher, in short.

    Prompts of the data set beyond `split.train_prompts`, three for each of these, are learnt
    without their lengths. An epoch of the teacher is three here; its other changes of the Trainer
    are kept.
    """
    most, usual = 3 * (config.split.train_prompts or 0) or None, recipe("demo").trainer
    data = replace(config.data, unlabelled=(config.data.dataset,), max_unlabelled=most)
    changed = {name: own for name, own in config.trainer.items() if own != usual.get(name)}
    if (epochs := config.trainer.get("max_epochs") or -1) > 0:
        changed["max_epochs"] = 3 * epochs
    small = replace(recipe("small").with_trainer(**changed), data=data, split=config.split)
    optim = replace(small.optim, ema_decay=None)  # An average lags behind in so few steps.
    return replace(small, optim=optim, threads=config.threads, seed=config.seed)


def recipe(name: str) -> TrainConfig:
    """Return the configuration of that name."""
    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}; use one of {', '.join(RECIPES)}")
    return replace(RECIPES[name][1], name=name)
