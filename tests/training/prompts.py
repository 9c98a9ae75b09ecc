"""Labelled prompts for tests, made as the product makes them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from training.data.labels import label_prompts
from training.data.records import PromptResponse, of_responses
from training.data.splits import Splits


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
