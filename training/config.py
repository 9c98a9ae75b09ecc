"""Settings of a training run, with units and the reasons for the defaults. No I/O.

No slots: jsonargparse reads a dataclass default through `vars`.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Final, Literal

from lengthwise.command_line.options import NESTED
from lengthwise.errors import ConfigError, raised_as, require
from lengthwise.settings import Count, NonNegative, Part, Positive, Range, settings
from lengthwise.tables.options import RecordOptions

Label = Literal["output_tokens", "reasoning_tokens", "answer_tokens"]
Repeats = Literal["first", "geometric_mean"]
Pooling = Literal["mean", "cls", "pooler", "last"]
_Several = Annotated[int, Range(least=2)]
_Minor = Annotated[float, Range(above=0, below=0.5)]
_Inside = Annotated[float, Range(above=0, below=1)]


@settings
class DataConfig(RecordOptions):
    """Prompts and lengths of a training run."""

    section: ClassVar[str] = "data."
    dataset: str = "alpaca-vicuna7b"
    """Data card, table, log, or hub name (hf:). It holds the validation and test prompts. A card is
    an id or the path of a card.yaml; `lengthwise inspect` reads tables and logs. A name of the
    Hugging Face hub is hf:ORG/NAME/CONFIG:SPLIT (also hf:FOLDER:SPLIT)."""
    also: tuple[str, ...] = ()
    """Further data sets to learn from; "arena-hard*4" takes one four times per epoch. Lengths are
    compared within a data set only."""
    consensus: bool = False
    """Learn the mean log length over the models of a data set, each less its own mean: the label of
    choice for a model that is not in the data."""
    held_out_models: Part = 0.0
    """Part of the models that a consensus leaves out, for tests; chosen by the hash of a name."""
    label: Label = "output_tokens"
    """The length that is ranked: all output tokens, or only one part of a reasoning model's."""
    heads: tuple[Label, ...] = ()
    """Further lengths, each with a head on the same encoder and a bundle of its own."""
    head_per_dataset: bool = False
    """Each data set of `also` has a head and a bundle too; a prompt of several is encoded once."""
    repeats: Repeats = "geometric_mean"
    """Training label of a prompt with repeated samples. Tests compare with the first sample."""
    max_prompt_tokens: Annotated[int, Range(least=3)] = 128
    """Of longer prompts the middle is left out, and they are counted; special tokens included."""
    description: Literal[1] | None = None
    """Learn from descriptions of requests, of this version: what a request holds beside the user's
    message (`lengthwise/conversation.py`). Rows hold bodies or descriptions. None: prompts."""
    framed: Part = 0.0
    """Part of the training prompts that stand in a frame, as in a chat (`data/frames.py`)."""
    unlabelled: tuple[str, ...] = ()
    """Data sets, tables or logs whose prompts a teacher scores beside the training prompts; their
    lengths, if any, are not read. Prompts of the validation and test parts are left out."""
    max_unlabelled: Count | None = None
    """Most prompts of them, in hash order; None takes all."""
    num_processes: Count | None = None
    """Processes that tokenize; None: this one."""

    def __post_init__(self) -> None:
        if len({self.label, *self.heads}) <= len(self.heads):
            raise ConfigError(
                f"data.heads is {list(self.heads)} beside data.label {self.label}; name each once"
            )

    @property
    def orders(self) -> tuple[str, ...]:
        """Names of the lengths, or of the data sets, one per head."""
        if self.head_per_dataset:
            return (self.dataset, *(times_of(name)[0] for name in self.also))
        return (self.label, *self.heads)


def times_of(name: str) -> tuple[str, int]:
    """Return the data set of an entry of `data.also`, and how often an epoch takes it."""
    dataset, star, times = name.partition("*")
    if star and (not times.isdigit() or int(times) < 1):
        raise ConfigError(
            f"data.also has {name!r}; use NAME or NAME*COUNT with a count of 1 or more"
        )
    return dataset, int(times or 1)


@settings
class SplitConfig:
    """Parts of the prompts; the rest beside validation and test is trained on."""

    section: ClassVar[str] = "split."
    val_fraction: _Minor = 0.05
    """Part kept for the choice of checkpoint and precision, and for calibration."""
    test_fraction: _Minor = 0.15
    """Part kept for the reported figures; nothing is chosen on it."""
    train_prompts: _Several | None = None
    """Most prompts of the part, in hash order; None takes all."""
    val_prompts: _Several | None = None
    """Most prompts to choose by; calibration takes the whole part."""
    test_prompts: _Several | None = None
    by_group: bool = False
    """Keep all prompts of a group (a task, a template) in one part; groups are a column of the
    data."""
    seed: int = 0
    """Another seed is another partition; figures of two seeds do not compare."""

    @property
    def held_out(self) -> float:
        return self.val_fraction + self.test_fraction


@settings
class EncoderConfig:
    """The network that turns a prompt into one vector."""

    section: ClassVar[str] = "encoder."
    backbone: str = "auto"
    """minilm, bert, mpnet, a transformers id or folder, a bundle, convolution; auto: minilm or else
    bert."""
    pooling: Pooling = "mean"
    """mean of the token vectors; cls or pooler (the paper's) only for BERT-like encoders; last
    token for decoders. The pooler of MiniLM costs .08 tau_b."""
    layers: Count | None = None
    """Layers of a convolution, or the first ones of a BERT-like encoder, which loses the others;
    None: 3 of a convolution, all of an encoder."""
    width: Count = 128
    """Channels of a convolution, at most those of its teacher's embeddings."""


@settings
class LossConfig:
    """The training objective."""

    section: ClassVar[str] = "loss."
    objective: str = "all-pairs"
    """all-pairs: margin over every pair of a batch, one encoder pass per prompt; pairs: margin over
    drawn pairs, as in PARS; l1, log-l1: regression on the length or its log; listmle; ranknet. The
    table is `LOSSES` in ranker/losses.py."""
    delta: Part = 0.2
    """Pairs whose lengths differ by less, relative to the longer, are left out: resampling the same
    prompt reverses them. The paper uses .2, and .25 for reasoning models."""
    margin: Positive = 1.0
    """Least difference of the scores that costs nothing."""
    pairs_per_prompt: Positive = 0.5
    """Of the objective pairs: pairs per epoch as a multiple of the prompts. One epoch with .5
    encodes as many prompts as one of all-pairs; the PARS code uses 10."""
    log_length_weight: NonNegative = 0.3
    """Weight of a second head that regresses the standardised log length (Huber); 0 is off."""
    teacher_weight: NonNegative = 0.0
    """Weight of the squared difference to a teacher's score (`--teacher`) beside the loss of the
    lengths; 0 is off."""
    token_weight: NonNegative = 0.0
    """Weight of the squared difference to the first teacher's vector of each token, in its
    principal components; 0 is off."""

    @property
    def draws_pairs(self) -> bool:
        return self.objective == "pairs"


@settings
class OptimConfig:
    """AdamW (or Adam) with warm-up and linear decay to 0."""

    section: ClassVar[str] = "optim."
    encoder_lr: NonNegative | None = None
    """Learning rate of the backbone, 0 freezes it; None: MiniLM 1e-4, T5 1e-4, others 2e-5."""
    head_lr: Positive = 1e-3
    """The heads are not pretrained and need a higher rate."""
    weight_decay: float = 0.01
    warmup_fraction: Part = 0.1
    decay: bool = True
    """Linear decay of the rate to 0 after the warm-up; the paper keeps it constant."""
    ema_decay: _Inside | None = None
    """Validate and export a moving average of the weights over about 1 / (1 - ema_decay) steps;
    None: the weights themselves. An average smooths the noise of one length per prompt."""


def trainer_settings(**changes: Any) -> dict[str, Any]:
    """Return settings of Lightning's Trainer in plain values: those of every recipe, and changes.

    Other settings have Lightning's defaults, but for `precision` (None: bf16 on a GPU that has it
    and on a CPU that computes faster in it, else fp32), `devices` (1, or those of torchrun) and
    `logger` (MLflow, beside any other).
    """
    return {"max_epochs": 2, "val_check_interval": 0.25, "gradient_clip_val": 1.0} | changes


@settings
class TrainConfig:
    """One experiment. `recipes.py` names some; the command line overrides single fields."""

    name: str = "ranker"
    """Name of the run in MLflow; the model in the registry has the name of its data set."""
    data: DataConfig = field(default_factory=DataConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: Mapping[str, Any] = field(default_factory=trainer_settings, metadata=NESTED)
    """Settings of Lightning's Trainer; `--trainer.NAME VALUE` sets any of them."""
    batch_size: _Several = 32
    """Prompts per optimiser step, over all processes; all-pairs compares every two of them."""
    micro_batch_size: Count | None = None
    """Prompts of similar length that are encoded together, which saves padding. None: 8 on a CPU,
    the whole batch on a GPU."""
    pad_to_limit: bool = False
    """Pad every training prompt to data.max_prompt_tokens, as the PARS code does."""
    threads: Count | None = None
    """CPU threads of torch; None leaves torch's choice."""
    seed: int = 0
    student: bool = False
    """Distil a small ranker into OUT/small, as demo does; or --no-student."""
    int8_max_tau_b_drop: float = 0.005
    """INT8 is left out of the bundle if it loses more tau_b on the validation split."""

    def __post_init__(self) -> None:
        if (self.data.orders[1:] or self.loss.teacher_weight) and self.loss.draws_pairs:
            text = (
                "loss.objective is pairs, drawn by one length; data.heads and teachers need another"
            )
            raise ConfigError(text)
        if self.data.head_per_dataset and (self.data.heads or self.loss.teacher_weight):
            raise ConfigError("data.head_per_dataset is set; give no data.heads and no teacher")
        weight, backbone = self.loss.token_weight, self.encoder.backbone
        is_right = weight == 0 or backbone == "convolution"
        require("loss.token_weight", weight, is_right, "0 unless encoder.backbone is convolution")

    @property
    def validations_per_epoch(self) -> int:
        """Parts of an epoch; 1 where validations are due at another interval."""
        interval = self.trainer.get("val_check_interval")
        return round(1 / interval) if isinstance(interval, float) and 0 < interval <= 1 else 1

    def with_trainer(self, **changes: Any) -> "TrainConfig":
        """Return the configuration with changes to the settings of the Trainer."""
        return replace(self, trainer={**self.trainer, **changes})


_FORMER: Final = {"epochs", "validations_per_epoch", "patience", "precision", "clip_norm"}
"""Of manifests of earlier versions: arguments of the Trainer under names of ours."""


def config_from(values: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of `asdict` values, e.g. of a bundle's manifest.

    Raises:
        ConfigError: a setting is wrong, or unknown to this version.
    """
    sections = {"data": DataConfig, "split": SplitConfig, "encoder": EncoderConfig}
    sections |= {"loss": LossConfig, "optim": OptimConfig}

    def read(section: str) -> dict[str, Any]:
        return {
            name: tuple(value) if isinstance(value, list) else value  # JSON has no tuples.
            for name, value in values[section].items()
            if name not in _FORMER
        }

    text = "not a training configuration of this version: {}"
    with raised_as(ConfigError, text, TypeError, KeyError):
        made = {section: kind(**read(section)) for section, kind in sections.items()}
        others = {name: value for name, value in values.items() if name not in _FORMER}
        return TrainConfig(**others | made)
