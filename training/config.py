"""Settings of a training run, with units and the reasons for the defaults. No I/O.

No slots: jsonargparse reads a dataclass default through `vars`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from lengthwise.errors import ConfigError, require
from lengthwise.tables.options import RecordOptions

Label = Literal["output_tokens", "reasoning_tokens", "answer_tokens"]
Repeats = Literal["first", "geometric_mean"]
Pooling = Literal["mean", "cls", "pooler", "last"]
Precision = Literal["auto", "fp32", "bf16"]

Rule: TypeAlias = tuple[Callable[[Any], bool], str]
"""A condition on the value of a setting, and its wording in an error."""
_POSITIVE: Final[Rule] = (lambda value: value > 0, "a number above 0")
_NOT_NEGATIVE: Final[Rule] = (lambda value: value >= 0, "0 or more")
_COUNT: Final[Rule] = (lambda value: value >= 1, "1 or more")
_TWO: Final[Rule] = (lambda value: value >= 2, "2 or more")
_PART: Final[Rule] = (lambda value: 0 <= value < 1, "[0, 1)")
_MINOR: Final[Rule] = (lambda value: 0 < value < 0.5, "a fraction in (0, .5)")


def _check(section: str, settings: object, **rules: Rule) -> None:
    for name, (holds, right) in rules.items():
        value = getattr(settings, name)
        require(f"{section}{name}", value, value is None or holds(value), right)


@dataclass(frozen=True, kw_only=True)
class DataConfig(RecordOptions):
    """Prompts and lengths of a training run."""

    dataset: str = "alpaca-vicuna7b"
    """Id of a data card, the path of a card.yaml, a table or logs (`lengthwise inspect` reads
    them), or of the Hugging Face hub hf:ORG/NAME/CONFIG:SPLIT (also hf:FOLDER:SPLIT). It holds the
    validation and test prompts."""
    also: tuple[str, ...] = ()
    """Further data sets to learn from; "arena-hard*4" takes one four times per epoch. Lengths are
    compared within a data set only."""
    consensus: bool = False
    """Learn the mean log length over the models of a data set, each less its own mean: the label of
    choice for a model that is not in the data."""
    held_out_models: float = 0.0
    """Part of the models that a consensus leaves out, for tests; chosen by the hash of a name."""
    label: Label = "output_tokens"
    """The length that is ranked: all output tokens, or only one part of a reasoning model's."""
    heads: tuple[Label, ...] = ()
    """Further lengths, each with a head on the same encoder and a bundle of its own."""
    head_per_dataset: bool = False
    """Each data set of `also` has a head and a bundle too; a prompt of several is encoded once."""
    repeats: Repeats = "geometric_mean"
    """Training label of a prompt with repeated samples. Tests compare with the first sample."""
    max_prompt_tokens: int = 128
    """Of longer prompts the middle is left out, and they are counted; special tokens included."""
    framed: float = 0.0
    """Part of the training prompts that stand in a frame, as in a chat (`data/frames.py`)."""
    unlabelled: tuple[str, ...] = ()
    """Data sets, tables or logs whose prompts a teacher scores beside the training prompts; their
    lengths, if any, are not read. Prompts of the validation and test parts are left out."""
    num_processes: int | None = None
    """Processes that tokenize; None: this one."""

    def __post_init__(self) -> None:
        three: Rule = (lambda value: value >= 3, "3 or more")
        _check("data.", self, max_prompt_tokens=three, held_out_models=_PART, framed=_PART)
        _check("data.", self, num_processes=_COUNT)
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


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """Parts of the prompts; the rest beside validation and test is trained on."""

    val_fraction: float = 0.05
    """Part kept for the choice of checkpoint and precision, and for calibration."""
    test_fraction: float = 0.15
    """Part kept for the reported figures; nothing is chosen on it."""
    train_prompts: int | None = None
    """Most prompts of the part, in hash order; None takes all."""
    val_prompts: int | None = None
    """Most prompts to choose by; calibration takes the whole part."""
    test_prompts: int | None = None
    seed: int = 0
    """Another seed is another partition; figures of two seeds do not compare."""

    def __post_init__(self) -> None:
        _check("split.", self, val_fraction=_MINOR, test_fraction=_MINOR)
        _check("split.", self, train_prompts=_TWO, val_prompts=_TWO, test_prompts=_TWO)

    @property
    def held_out(self) -> float:
        return self.val_fraction + self.test_fraction


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The network that turns a prompt into one vector."""

    backbone: str = "auto"
    """minilm, bert, mpnet, a transformers id or folder, a bundle, convolution; auto: minilm or else
    bert."""
    pooling: Pooling = "mean"
    """mean of the token vectors; cls or pooler (the paper's) only for BERT-like encoders; last
    token for decoders. The pooler of MiniLM costs .08 tau_b."""
    layers: int | None = None
    """Layers of a convolution, or the first ones of a BERT-like encoder, which loses the others;
    None: 3 of a convolution, all of an encoder."""
    width: int = 128
    """Channels of a convolution, at most those of its teacher's embeddings."""

    def __post_init__(self) -> None:
        _check("encoder.", self, layers=_COUNT, width=_COUNT)


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
    """Of the objective pairs: pairs per epoch as a multiple of the prompts. One epoch with .5
    encodes as many prompts as one of all-pairs; the PARS code uses 10."""
    log_length_weight: float = 0.3
    """Weight of a second head that regresses the standardised log length (Huber); 0 is off."""
    teacher_weight: float = 0.0
    """Weight of the squared difference to a teacher's score (`--teacher`) beside the loss of the
    lengths; 0 is off."""
    token_weight: float = 0.0
    """Weight of the squared difference to the first teacher's vector of each token, in its
    principal components; 0 is off."""

    def __post_init__(self) -> None:
        _check("loss.", self, delta=_PART, margin=_POSITIVE, pairs_per_prompt=_POSITIVE)
        _check("loss.", self, log_length_weight=_NOT_NEGATIVE, teacher_weight=_NOT_NEGATIVE)
        _check("loss.", self, token_weight=_NOT_NEGATIVE)

    @property
    def draws_pairs(self) -> bool:
        return self.objective == "pairs"


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW (or Adam) with warm-up and linear decay to 0."""

    encoder_lr: float | None = None
    """Learning rate of the backbone, 0 freezes it; None: MiniLM 1e-4, T5 1e-4, others 2e-5."""
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
        inside: Rule = (lambda value: 0 < value < 1, "between 0 and 1")
        _check("optim.", self, ema_decay=inside, warmup_fraction=_PART, encoder_lr=_NOT_NEGATIVE)
        _check("optim.", self, head_lr=_POSITIVE, clip_norm=_POSITIVE)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One experiment. `recipes.py` names some; the command line overrides single fields."""

    name: str = "ranker"
    """Name of the run in MLflow; the model in the registry has the name of its data set."""
    data: DataConfig = field(default_factory=DataConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    epochs: int = 2
    batch_size: int = 32
    """Prompts per optimiser step, over all processes; all-pairs compares every two of them."""
    micro_batch_size: int | None = None
    """Prompts of similar length that are encoded together, which saves padding. None: 8 on a CPU,
    the whole batch on a GPU."""
    pad_to_limit: bool = False
    """Pad every training prompt to data.max_prompt_tokens, as the PARS code does."""
    validations_per_epoch: int = 4
    patience: int | None = None
    """Stop after this many validations without a better tau_b; None trains to the end."""
    precision: Precision = "auto"
    """Precision of the arithmetic in training; weights stay fp32. auto: bf16 on a GPU that has it,
    and on a CPU that computes faster in it (AMX; AVX-512 BF16 of AMD), else fp32."""
    threads: int | None = None
    """CPU threads of torch; None leaves torch's choice."""
    seed: int = 0
    student: bool = False
    """Afterwards distil a small ranker from this one (recipe small), into OUT/small."""
    int8_max_tau_b_drop: float = 0.005
    """INT8 is left out of the bundle if it loses more tau_b on the validation split."""

    def __post_init__(self) -> None:
        _check("", self, batch_size=_TWO, epochs=_COUNT, validations_per_epoch=_COUNT)
        _check("", self, micro_batch_size=_COUNT, patience=_COUNT, threads=_COUNT)
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


def config_from(values: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of `asdict` values, e.g. of a bundle's manifest.

    Raises:
        ConfigError: a setting is wrong, or unknown to this version.
    """
    sections = {"data": DataConfig, "split": SplitConfig, "encoder": EncoderConfig}
    sections |= {"loss": LossConfig, "optim": OptimConfig}

    def read(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value  # JSON has no tuples.

    try:
        made = {
            section: kind(**{name: read(value) for name, value in values[section].items()})
            for section, kind in sections.items()
        }
        # Of versions before: further arguments of Lightning's Trainer.
        return TrainConfig(**{k: v for k, v in {**values, **made}.items() if k != "trainer"})
    except (TypeError, KeyError) as error:
        raise ConfigError(f"not a training configuration of this version: {error}") from error
