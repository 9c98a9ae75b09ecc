"""Settings of a training run, with units and the reasons for the defaults. No I/O.

No slots: jsonargparse reads a dataclass default through `vars`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal

from lengthwise.errors import ConfigError, at_least, require

Label = Literal["output_tokens", "reasoning_tokens", "answer_tokens"]
Repeats = Literal["first", "geometric_mean"]
Pooling = Literal["mean", "cls", "pooler", "last"]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Prompts and lengths that a run learns from."""

    dataset: str = "alpaca-vicuna7b"
    """Id of a data card, or the path of a card.yaml, of a table (.parquet, .jsonl, .csv) or of a
    log (OpenAI-style, vLLM, LiteLLM, Langfuse). Validation and test prompts come from here."""
    prompt_column: str = "prompt"
    """Of a table without a card: a column or a path into it, such as request.messages."""
    length_column: tuple[str, ...] = ()
    """Tokens, also by path (usage.completion_tokens); several are repeated samples of each prompt;
    default: output_tokens."""
    model_column: str | None = None
    """The model that responded; default: the column model, if there is one."""
    on_bad_rows: Literal["error", "skip"] = "error"
    """What a row without a prompt or a length does: end the run, or be left out and counted."""
    also: tuple[str, ...] = ()
    """Further data sets to learn from; "arena-hard*4" takes one four times per epoch. Lengths are
    compared within a data set only."""
    model: str | None = None
    """Only this model's responses, of a `dataset` that holds several."""
    consensus: bool = False
    """Learn the mean log length over the models of a data set, each less its own mean: the label of
    choice for a model that is not in the data."""
    held_out_models: float = 0.0
    """Part of the models that a consensus leaves out, for tests; follows from their names."""
    label: Label = "output_tokens"
    """The length that is ranked: all output tokens, or only one part of a reasoning model's."""
    heads: tuple[Label, ...] = ()
    """Further lengths, each with a head of its own on the same encoder and a bundle of its own: one
    scheduler may want the total, another one the reasoning."""
    repeats: Repeats = "geometric_mean"
    """Training label of a prompt with repeated samples. Tests compare with the first sample."""
    max_prompt_tokens: int = 128
    """Longer prompts are cut and counted; special tokens included."""

    def __post_init__(self) -> None:
        at_least("data.max_prompt_tokens", self.max_prompt_tokens, 3)
        part = self.held_out_models
        require("data.held_out_models", part, 0 <= part < 1, "[0, 1)")
        if len({self.label, *self.heads}) <= len(self.heads):
            raise ConfigError(
                f"data.heads is {list(self.heads)} beside data.label {self.label}; name each once"
            )


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """Parts of the prompts; those of neither validation nor test are trained on."""

    val_fraction: float = 0.05
    """Part kept for the choice of checkpoint and precision, and for calibration."""
    test_fraction: float = 0.15
    """Part kept for the reported figures; nothing is chosen on it."""
    train_prompts: int | None = None
    """At most this many of the part, in hash order; None takes all."""
    val_prompts: int | None = None
    """At most this many to choose by; calibration takes the whole part."""
    test_prompts: int | None = None
    seed: int = 0
    """Another seed is another partition; figures of two seeds do not compare."""

    def __post_init__(self) -> None:
        for name in ("val_fraction", "test_fraction"):
            part = getattr(self, name)
            require(f"split.{name}", part, 0 < part < 0.5, "a fraction in (0, .5)")
        for name in ("train_prompts", "val_prompts", "test_prompts"):
            at_least(f"split.{name}", getattr(self, name), 2)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The network that turns a prompt into one vector."""

    backbone: str = "auto"
    """minilm (installed by the extra offline-backbone), bert (google-bert/bert-base-uncased), any
    transformers model id or folder, or auto: minilm where it is installed, else bert."""
    pooling: Pooling = "mean"
    """mean of the token vectors; cls or pooler (the paper's) only for BERT-like encoders; last
    token for decoders. The pooler of MiniLM costs .08 tau_b."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The training objective."""

    objective: str = "all-pairs"
    """all-pairs: margin over every pair of a batch, one encoder pass per prompt; pairs: margin over
    drawn pairs, as in PARS; l1, log-l1: regression on the length or its log; listmle; ranknet. The
    table is `LOSSES` in ranker/losses.py."""
    delta: float = 0.2
    """Pairs whose lengths differ by less, relative to the longer, are left out: resampling the same
    prompt reverses them. The paper uses .2, and .25 for reasoning models."""
    margin: float = 1.0
    """Least difference of the scores that costs nothing."""
    pairs_per_prompt: float = 0.5
    """Only for pairs, per epoch; .5 encodes as many prompts as one epoch of all-pairs, the PARS
    code uses 10."""
    log_length_weight: float = 0.3
    """Weight of a second head that regresses the standardised log length (Huber); 0 is off."""

    def __post_init__(self) -> None:
        require("loss.delta", self.delta, 0 <= self.delta < 1, "a relative gap in [0, 1)")
        for name in ("margin", "pairs_per_prompt"):
            value = getattr(self, name)
            require(f"loss.{name}", value, value > 0, "a number above 0")
        at_least("loss.log_length_weight", self.log_length_weight, 0)

    @property
    def draws_pairs(self) -> bool:
        """True for a loss of drawn pairs, instead of whole batches."""
        return self.objective == "pairs"


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW (or Adam) with warm-up and linear decay to 0."""

    encoder_lr: float | None = None
    """Learning rate of the backbone; None: MiniLM 1e-4, T5 1e-4, others 2e-5."""
    head_lr: float = 1e-3
    """The heads are not pretrained and need a higher rate."""
    weight_decay: float = 0.01
    warmup_fraction: float = 0.1
    decay: bool = True
    """Linear decay of the rate to 0 after the warm-up; the paper keeps it constant."""
    clip_norm: float | None = 1.0
    """Longest gradient of all weights together; None leaves gradients as they are."""
    ema_decay: float | None = None
    """Validate and export a moving average of the weights over about 1 / (1 - ema_decay) steps;
    None: the weights themselves. An average smooths the noise of one length per prompt."""

    def __post_init__(self) -> None:
        if self.ema_decay is not None:
            require("optim.ema_decay", self.ema_decay, 0 < self.ema_decay < 1, "between 0 and 1")
        for name in ("head_lr", "clip_norm"):
            value = getattr(self, name)
            require(f"optim.{name}", value, value is None or value > 0, "a number above 0")
        if self.encoder_lr is not None:
            require("optim.encoder_lr", self.encoder_lr, self.encoder_lr >= 0, "0 (frozen) or more")
        part = self.warmup_fraction
        require("optim.warmup_fraction", part, 0 <= part < 1, "[0, 1)")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One experiment. `recipes.py` names some; the command line overrides single fields."""

    name: str = "ranker"
    """Name of the run in MLflow; the model in the registry has that of its data set."""
    data: DataConfig = field(default_factory=DataConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    epochs: int = 2
    batch_size: int = 32
    """Prompts per optimiser step, over all processes; all-pairs compares every two of them."""
    micro_batch_size: int | None = None
    """Prompts encoded together: a batch is sorted by length and cut into these, so that a short
    prompt is not padded to the longest of the batch. None: 8 on a CPU, the whole batch on a GPU,
    which computes padding faster than the host launches one more micro-batch."""
    pad_to_limit: bool = False
    """Pad every training prompt to data.max_prompt_tokens (or the encoder's last position), as the
    PARS code does; only to compare costs."""
    validations_per_epoch: int = 4
    patience: int | None = None
    """Stop after this many validations without a better tau_b; None trains to the end."""
    precision: Precision = "auto"
    """Of the arithmetic in training; weights stay fp32. auto: bf16 on a GPU that has it, and on a
    CPU that computes faster in it (AMX; AVX-512 BF16 of AMD), else fp32."""
    threads: int | None = None
    """CPU threads of torch; None leaves torch's choice."""
    seed: int = 0
    int8_max_tau_b_drop: float = 0.005
    """INT8 is left out of the bundle if it loses more tau_b on the validation split."""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Further arguments of Lightning's Trainer by name: --trainer.accumulate-grad-batches 4"""

    def __post_init__(self) -> None:
        at_least("batch_size", self.batch_size, 2)
        counts = ("epochs", "validations_per_epoch", "micro_batch_size", "patience", "threads")
        for name in counts:
            at_least(name, getattr(self, name), 1)
        if self.data.heads and self.loss.draws_pairs:
            raise ConfigError(
                "loss.objective is pairs, which are drawn by one length; data.heads need another"
            )


def config_from(values: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration that `asdict` made `values` of, e.g. in a bundle's manifest.

    Raises:
        ConfigError: a setting is unknown to this version, or wrong.
    """
    parts = {part.name: part.default_factory for part in fields(TrainConfig)}
    try:
        made = {
            key: make(**({} if key == "trainer" and key not in values else values[key]))
            for key, make in parts.items()
            if make is not MISSING
        }
        data = made["data"]  # JSON has no tuples.
        lists = ("also", "heads", "length_column")
        made["data"] = replace(data, **{name: tuple(getattr(data, name)) for name in lists})
        return TrainConfig(**{**values, **made})
    except (TypeError, KeyError) as error:
        raise ConfigError(f"not a training configuration of this version: {error}") from error
