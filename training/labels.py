"""Records -> one labelled prompt each. Pure functions.

The label is the length to be ranked by: all output tokens, or of a reasoning model only the
reasoning or only the answer. Repeated samples of a prompt stay together, so no split can part them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from scoring_service.errors import DataError
from training.records import PromptResponse, prompt_hash

Label = Literal["output_tokens", "reasoning_tokens", "answer_tokens"]
Repeats = Literal["first", "geometric_mean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledPrompt:
    """One prompt with every observed length of one model's responses to it."""

    prompt: str
    model: str
    lengths: tuple[int, ...]
    """In tokens, >= 1, in sample order."""
    group: str = ""

    @property
    def observed(self) -> int:
        """The length that tests compare with: one sample, as a scheduler will meet it."""
        return self.lengths[0]

    def target(self, repeats: Repeats) -> float:
        """The length to learn from, in tokens: the first sample, or the geometric mean of all."""
        if repeats == "first":
            return float(self.lengths[0])
        return math.exp(sum(map(math.log, self.lengths)) / len(self.lengths))


def label_prompts(
    records: Iterable[PromptResponse], label: Label = "output_tokens"
) -> tuple[list[LabelledPrompt], int]:
    """Group the records by (normalised prompt, model), in order of first appearance.

    Returns the prompts and how many records were folded into another one's prompt. Lengths of 0
    (a reasoning model that did not reason) are left out.

    Raises:
        DataError: a record lacks the label.
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
