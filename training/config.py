"""Every setting of a training run, with its unit and the reason for its default. No I/O.

No slots: jsonargparse reads a dataclass default through `vars`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scoring_service.errors import ConfigError
from training.data.labels import Label, Repeats
from training.data.splits import SplitConfig

Objective = Literal["all-pairs", "pairs", "l1", "log-l1", "listmle", "ranknet"]
Pooling = Literal["mean", "cls", "pooler", "last"]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learnt from."""

    dataset: str = "alpaca-vicuna7b"
    """Id of a data card, or the path of a card.yaml or of a table (.parquet, .jsonl, .csv).
    Validation and test prompts are taken from here."""
    also: tuple[str, ...] = ()
    """Further data sets to learn from; "arena-hard*4" takes one four times per epoch. Lengths are
    compared within a data set only."""
    model: str | None = None
    """Only this model's responses, of a `dataset` that holds several."""
    consensus: bool = False
    """Learn what the models of a data set agree on, each less its own mean log length: the label of
    choice for a model never seen."""
    held_out_models: float = 0.0
    """Part of the models that a consensus leaves out, to be tested on; chosen by name."""
    label: Label = "output_tokens"
    """Which length is ranked: all output tokens, or of a reasoning model only one part."""
    heads: tuple[Label, ...] = ()
    """Further lengths, each learnt by a head of its own on the same encoder and exported as a
    bundle of its own: a scheduler may want the total, another one the reasoning."""
    repeats: Repeats = "geometric_mean"
    """Training label of a prompt with repeated samples. Tests always use the first sample."""
    max_prompt_tokens: int = 128
    """Longer prompts are cut and counted; special tokens included."""

    def __post_init__(self) -> None:
        _at_least("data.max_prompt_tokens", self.max_prompt_tokens, 3)
        if not 0 <= self.held_out_models < 1:
            raise ConfigError(f"data.held_out_models is {self.held_out_models}; use [0, 1)")
        if len({self.label, *self.heads}) <= len(self.heads):
            raise ConfigError(
                f"data.heads is {list(self.heads)} beside data.label {self.label}; name each once"
            )


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """What turns a prompt into one vector."""

    backbone: str = "auto"
    """minilm (installed by the extra offline-backbone), bert (google-bert/bert-base-uncased), any
    transformers model id or folder, or auto: minilm where it is installed, else bert."""
    pooling: Pooling = "mean"
    """mean of the token vectors; cls or pooler (the paper's) only for BERT-like encoders; last
    token for decoders. The pooler of MiniLM costs .08 tau_b."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What is minimised."""

    objective: Objective = "all-pairs"
    """all-pairs: margin over every pair of a batch, one encoder pass per prompt; pairs: margin over
    drawn pairs, as in PARS; l1, log-l1: regression on the length or its log; listmle; ranknet."""
    delta: float = 0.2
    """Pairs whose lengths differ by less, relative to the longer, are left out: resampling the same
    prompt reverses them. The paper uses .2, and .25 for reasoning models."""
    margin: float = 1.0
    """By how much the longer prompt's score must win."""
    pairs_per_prompt: float = 0.5
    """Only for pairs, per epoch; .5 encodes as many prompts as one epoch of all-pairs, the PARS
    code uses 10."""
    log_length_weight: float = 0.3
    """Weight of a second head that regresses the standardised log length (Huber); 0 is off."""

    def __post_init__(self) -> None:
        if not 0 <= self.delta < 1:
            raise ConfigError(f"loss.delta is {self.delta}; use a relative gap in [0, 1)")
        _positive("loss.margin", self.margin)
        _positive("loss.pairs_per_prompt", self.pairs_per_prompt)
        if self.log_length_weight < 0:
            raise ConfigError(f"loss.log_length_weight is {self.log_length_weight}; use 0 or more")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How it is minimised: AdamW (or Adam), warm-up, linear decay to 0."""

    encoder_lr: float | None = None
    """Learning rate of the backbone; None takes what suits it (MiniLM 1e-4, BERT 2e-5)."""
    head_lr: float = 1e-3
    """The heads start from nothing, so they learn faster."""
    weight_decay: float = 0.01
    warmup_fraction: float = 0.1
    decay: bool = True
    """Whether the rate falls linearly to 0 after the warm-up; the paper keeps it constant."""
    clip_norm: float = 1.0
    ema_decay: float | None = None
    """Validate and export a moving average of the weights, of about 1 / (1 - ema_decay) steps; None
    takes them as they are. One length per prompt is a noisy label, which an average smooths."""

    def __post_init__(self) -> None:
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ConfigError(f"optim.ema_decay is {self.ema_decay}; use between 0 and 1")
        _positive("optim.head_lr", self.head_lr)
        _positive("optim.clip_norm", self.clip_norm)
        if self.encoder_lr is not None and self.encoder_lr < 0:
            raise ConfigError(f"optim.encoder_lr is {self.encoder_lr}; use 0 (frozen) or more")
        if not 0 <= self.warmup_fraction < 1:
            raise ConfigError(f"optim.warmup_fraction is {self.warmup_fraction}; use [0, 1)")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One experiment. `recipes.py` names some; the command line overrides single fields."""

    name: str = "ranker"
    """Name of the model in the registry and of the experiment in MLflow."""
    data: DataConfig = field(default_factory=DataConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    epochs: int = 2
    batch_size: int = 32
    """Prompts per optimiser step; all-pairs compares every two of them."""
    micro_batch_size: int | None = None
    """Prompts encoded together: a batch is sorted by length and cut into these, so that a short
    prompt is not padded to the longest of the batch. None: 8 on a CPU; on a GPU, which computes
    padding faster than the host launches one more micro-batch, the whole batch."""
    pad_to_limit: bool = False
    """Pad every training prompt to data.max_prompt_tokens (or the encoder's last position), as the
    PARS code does; only to compare costs."""
    validations_per_epoch: int = 4
    patience: int | None = None
    """Stop after so many validations without a better tau_b; None trains to the end."""
    precision: Precision = "auto"
    """Of the arithmetic in training; weights stay fp32. auto: bf16 on a GPU or CPU that computes in
    it (on AVX-512 BF16 it saves a quarter of the CPU time), else fp32."""
    threads: int | None = None
    """CPU threads of torch; None leaves torch's choice."""
    seed: int = 0
    int8_max_tau_b_drop: float = 0.005
    """INT8 is left out of the bundle where it loses more on the validation split."""

    def __post_init__(self) -> None:
        _at_least("epochs", self.epochs, 1)
        _at_least("batch_size", self.batch_size, 2)
        _at_least("validations_per_epoch", self.validations_per_epoch, 1)
        for name in ("micro_batch_size", "patience", "threads"):
            if (value := getattr(self, name)) is not None:
                _at_least(name, value, 1)
        if self.data.heads and self.loss.objective == "pairs":
            raise ConfigError(
                "loss.objective is pairs, which are drawn by one length; data.heads need another"
            )


def config_from(values: Mapping[str, Any]) -> TrainConfig:
    """The configuration that `asdict` turned into `values`, e.g. in a bundle's manifest.

    Raises:
        ConfigError: a setting is unknown to this version, or wrong.
    """
    parts = {
        "data": DataConfig,
        "split": SplitConfig,
        "encoder": EncoderConfig,
        "loss": LossConfig,
        "optim": OptimConfig,
    }
    try:
        made = {key: make(**values[key]) for key, make in parts.items()}
        data = made["data"]  # JSON has no tuples.
        made["data"] = replace(data, also=tuple(data.also), heads=tuple(data.heads))
        return TrainConfig(**{**values, **made})
    except (TypeError, KeyError) as error:
        raise ConfigError(f"not a training configuration of this version: {error}") from error


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} is {value}; use {least} or more")


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name} is {value}; use a number above 0")
