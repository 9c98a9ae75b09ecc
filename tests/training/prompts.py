"""Labelled prompts for tests, made as the product makes them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from training.data.labels import label_prompts
from training.data.records import FieldMap, checked, stored
from training.data.splits import Splits


@dataclass(frozen=True, kw_only=True)
class PromptResponse:
    prompt: str
    output_tokens: int
    model: str = ""
    sample: int = 0
    reasoning_tokens: int | None = None
    answer_tokens: int | None = None
    group: str = ""


def of_responses(responses: Sequence[PromptResponse]) -> Any:
    """A Dataset of records."""
    rows = [asdict(each) for each in responses]
    named = {name: name for name, value in rows[0].items() if value is not None}
    fields = FieldMap(**named | {"output_tokens": ("output_tokens",)})
    return stored(lambda _: checked(enumerate(rows), fields), json.dumps(rows))[0]


def labels(responses: Iterable[PromptResponse]) -> Any:
    """A Dataset of labelled prompts."""
    return label_prompts(of_responses(list(responses)))


def labelled(lengths: Mapping[str, Sequence[int]], **about: Any) -> Any:
    """Prompts with the lengths of one model's responses to each."""
    return labels(
        PromptResponse(prompt=prompt, output_tokens=length, sample=number, **about)
        for prompt, samples in lengths.items()
        for number, length in enumerate(samples)
    )


def numbered(count: int, first: int = 0) -> Any:
    """That many prompts, each with a length of its own."""
    return labelled({f"bees {n}": (n + 1,) for n in range(first, first + count)})


def splits_of(train: Any, val: Any, test: Any = None) -> Splits:
    test = val if test is None else test
    return Splits(train=train, val=val, test=test, calibration=val)
