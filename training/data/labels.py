"""Labels: records -> one labelled prompt each. Pure functions.

The label is the length to rank by: all output tokens, or of a reasoning model only the reasoning or
only the answer. Repeated samples of a prompt form one labelled prompt, so no split separates them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import DataError
from training.config import Label, Repeats
from training.data.records import PromptResponse, prompt_hash


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

    @property
    def observed(self) -> int:
        """The length that tests compare with: the first sample."""
        return self.lengths[0]

    def target(self, repeats: Repeats) -> float:
        """Return the training label in tokens: the first sample, or the geometric mean of all."""
        if repeats == "first":
            return float(self.lengths[0])
        return math.exp(sum(map(math.log, self.lengths)) / len(self.lengths))


def label_prompts(
    records: Iterable[PromptResponse], label: Label = "output_tokens"
) -> tuple[list[LabelledPrompt], int]:
    """Group the records by (normalised prompt, model), in order of first appearance.

    Returns the prompts and the number of records merged into an earlier record's prompt. Lengths of
    0 (a reasoning model that did not reason) are left out.
    """
    grouped: dict[tuple[str, str], list[PromptResponse]] = {}
    num_records = 0
    for record in records:
        length = getattr(record, label)
        if length is None:
            raise DataError(f"the data has no {label}; map that column, or choose another label")
        if length > 0:
            num_records += 1
            grouped.setdefault((prompt_hash(record.prompt), record.model), []).append(record)
    prompts = [
        LabelledPrompt(
            prompt=repeats[0].prompt,
            model=repeats[0].model,
            lengths=tuple(getattr(r, label) for r in sorted(repeats, key=lambda r: r.sample)),
            group=repeats[0].group,
        )
        for repeats in grouped.values()
    ]
    return prompts, num_records - len(prompts)


def of_one_model(
    prompts: Sequence[LabelledPrompt], *, model: str | None, consensus: bool, held_out: float
) -> list[LabelledPrompt]:
    """Return one label per prompt, from one model's responses or from the consensus of several.

    Args:
        prompts: labelled prompts of any number of models.
        model: name of the model; None if there is only one, or for a consensus.
        consensus: join the labels of several models (`consensus_of`).
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
    """Return the prompts themselves."""
    return [item.prompt for item in items]


def targets(items: Sequence[LabelledPrompt], repeats: Repeats) -> NDArray[np.float64]:
    """Return the training labels in tokens, shape (N,)."""
    return np.array([item.target(repeats) for item in items])


def observed(items: Sequence[LabelledPrompt]) -> NDArray[np.float64]:
    """Return the lengths that figures are computed on, one per prompt, in tokens, shape (N,)."""
    return np.array([item.observed for item in items], np.float64)


def consensus_of(prompts: Sequence[LabelledPrompt]) -> list[LabelledPrompt]:
    """Return one label per prompt: the mean log length over models, each less its own mean.

    A model that always answers at twice the length of another so gives the same label. The mean
    over models is the best guess for a model that is not in the data.
    """
    logs: dict[str, list[float]] = {}
    for item in prompts:
        logs.setdefault(item.model, []).append(math.log(item.observed))
    offsets = {model: sum(values) / len(values) for model, values in logs.items()}
    centre = sum(offsets.values()) / len(offsets)
    deviations: dict[str, list[float]] = {}
    first: dict[str, LabelledPrompt] = {}
    for item in prompts:
        key = prompt_hash(item.prompt)
        first.setdefault(key, item)
        deviations.setdefault(key, []).append(math.log(item.observed) - offsets[item.model])
    return [
        replace(
            first[key],
            model="consensus",
            lengths=(max(1, round(math.exp(centre + sum(values) / len(values)))),),
        )
        for key, values in deviations.items()
    ]


def is_held_out(model: str, fraction: float) -> bool:
    """Return whether a model is kept for tests; follows from its name alone."""
    return int(prompt_hash(model, salt="lengthwise-models")[:12], 16) / 2**48 < fraction
