"""Labels: records -> labelled prompts.

The label is the length to rank by: all output tokens, or of a reasoning model only the reasoning or
only the answer. Repeated samples of a prompt form one labelled prompt, so no split separates them.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import DataError
from lengthwise.tables.options import RecordOptions
from training.config import Label, Repeats
from training.data.records import PromptResponse, prompt_hash, read_records

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledPrompt:
    """One prompt and the observed lengths of one model's responses to it."""

    prompt: str
    model: str
    lengths: tuple[int, ...]
    """In tokens, >= 1, in sample order."""
    group: str = ""
    source: str = ""
    """The data set; lengths of different data sets are not compared."""
    key: str = ""
    """`prompt_hash` of the prompt; computed where it is not given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or prompt_hash(self.prompt))

    @property
    def observed(self) -> int:
        return self.lengths[0]

    def target(self, repeats: Repeats) -> float:
        """Return the training label in tokens: the first sample, or the geometric mean of all."""
        if repeats == "first":
            return float(self.lengths[0])
        return math.exp(sum(map(math.log, self.lengths)) / len(self.lengths))


def label_prompts(
    records: Iterable[PromptResponse], label: Label = "output_tokens"
) -> list[LabelledPrompt]:
    """Group the records by (normalised prompt, model), in order of first appearance.

    Lengths of 0 (a reasoning model that did not reason) are left out.
    """
    grouped: dict[tuple[str, str], list[PromptResponse]] = {}
    for record in records:
        if (length := getattr(record, label)) is None:
            raise DataError(f"the data has no {label}; map that column, or choose another label")
        if length > 0:
            grouped.setdefault((record.key, record.model), []).append(record)
    return [
        LabelledPrompt(
            prompt=first.prompt,
            model=first.model,
            lengths=tuple(
                getattr(r, label) for r in sorted((first, *others), key=lambda r: r.sample)
            ),
            group=first.group,
            key=first.key,
        )
        for first, *others in grouped.values()
    ]


def of_one_model(
    prompts: Sequence[LabelledPrompt], *, model: str | None, consensus: bool, held_out: float
) -> list[LabelledPrompt]:
    """Return one label per prompt, from one model's responses or from the consensus of several.

    Args:
        model: None if the prompts hold a single model, or for a consensus.
        held_out: part of the models that a consensus leaves out (`is_held_out`).
    """
    if model is not None:
        prompts = [item for item in prompts if item.model == model]
    models = sorted({item.model for item in prompts})
    if consensus and len(models) > 1:
        return consensus_of([p for p in prompts if not is_held_out(p.model, held_out)])
    if len(models) != 1:
        known = ", ".join(models[:5]) if models else f"none called {model!r}"
        raise DataError(
            f"the data holds {len(models)} models ({known}...); choose data.model or data.consensus"
        )
    return list(prompts)


def texts(items: Sequence[LabelledPrompt]) -> list[str]:
    return [item.prompt for item in items]


def targets(items: Sequence[LabelledPrompt], repeats: Repeats) -> NDArray[np.float64]:
    """Return the training labels in tokens, shape (N,)."""
    return np.array([item.target(repeats) for item in items])


def observed(items: Sequence[LabelledPrompt]) -> NDArray[np.float64]:
    return np.array([item.observed for item in items], np.float64)


def union_of(labels: Sequence[Sequence[LabelledPrompt]]) -> list[LabelledPrompt]:
    """Return the prompts of every label; one that an earlier label has is not repeated."""
    first: dict[str, int] = {}
    return [i for n, items in enumerate(labels) for i in items if first.setdefault(i.key, n) == n]


def side_by_side(
    rows: Sequence[LabelledPrompt],
    labels: Sequence[Sequence[LabelledPrompt]],
    length: Callable[[LabelledPrompt], float] = lambda item: item.observed,
) -> NDArray[np.float64]:
    """Return the lengths of prompts by every label, (N, K); NaN where a prompt has no such one."""
    known = [{(item.source, item.key): length(item) for item in items} for items in labels]
    keys = [(item.source, item.key) for item in rows]
    return np.array([[lengths.get(key, np.nan) for lengths in known] for key in keys])


def consensus_of(prompts: Sequence[LabelledPrompt]) -> list[LabelledPrompt]:
    """Return one label per prompt: the mean log length over models, each less its own mean.

    A model with twice the length of another on every prompt gives the same label. The mean over
    models is the best guess for a model that is not in the data.
    """
    logs: dict[str, list[float]] = {}
    for item in prompts:
        logs.setdefault(item.model, []).append(math.log(item.observed))
    offsets = {model: sum(values) / len(values) for model, values in logs.items()}
    centre = sum(offsets.values()) / len(offsets)
    deviations: dict[str, list[float]] = {}
    for item in prompts:
        deviations.setdefault(item.key, []).append(math.log(item.observed) - offsets[item.model])
    first = {item.key: item for item in reversed(prompts)}
    return [
        replace(
            first[key],
            model="consensus",
            lengths=(max(1, round(math.exp(centre + sum(values) / len(values)))),),
        )
        for key, values in deviations.items()
    ]


def is_held_out(model: str, fraction: float) -> bool:
    """Return whether a model is kept for tests; its name alone decides."""
    return int(prompt_hash(model, salt="lengthwise-models")[:12], 16) / 2**48 < fraction


@dataclass(frozen=True, kw_only=True)
class TableOptions(RecordOptions):
    """A table and its columns."""

    data: tuple[str, ...]
    """Files, folders or patterns, read as one log: a table (.parquet, .jsonl, .csv) or a log (see
    `lengthwise inspect`)."""
    group_column: str | None = None
    """Task or cluster: also give tau_b within groups."""


def read_prompts(options: TableOptions, label: str) -> list[LabelledPrompt]:
    """Return the distinct prompts of a table, with the lengths of one model's responses.

    `label` is the column of lengths if the options name none.
    """
    records, num_empty = read_records(options.data, options, label, options.group_column)
    models = sorted({record.model for record in records})
    if len(models) != 1:
        known = ", ".join(models[:9]) if models else f"not {options.model!r}"
        raise DataError(f"the rows are of {known}; choose one with --model", path=options.data[0])
    if num_empty:
        logger.info("%d rows with a length of 0 dropped", num_empty)
    return label_prompts(records)
