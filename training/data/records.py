"""Records: a prompt and the length of a model's response to it. No torch.

A `FieldMap` names the columns of a table. Each row is checked and its prompt hashed here, once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lengthwise.errors import DataError
from lengthwise.tables.files import Paths
from lengthwise.tables.log_reader import NO_ANSWER
from lengthwise.tables.options import RecordOptions
from lengthwise.tables.prompt_text import normalised, prompt_of
from lengthwise.tables.reading import read_log, require_columns
from lengthwise.tables.values import count_of
from training.config import Label

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptResponse:
    """One response of one model to one prompt. Counts are tokens, `output_tokens` >= 1."""

    prompt: str
    output_tokens: int
    """Reasoning and answer together."""
    model: str = ""
    sample: int = 0
    """Number among the responses to the same prompt; tests use the lowest."""
    reasoning_tokens: int | None = None
    answer_tokens: int | None = None
    group: str = ""
    """Task or cluster of the prompt, for figures within groups; "" for none."""
    key: str = field(init=False)
    """`prompt_hash` of the prompt."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", prompt_hash(self.prompt))


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldMap:
    """Column names of a table; None for a column that it lacks."""

    prompt: str = "prompt"
    output_tokens: tuple[str, ...] = ("output_tokens",)
    """Several columns are repeated samples of the same prompt, the tested sample first. Without a
    column the output is reasoning plus answer."""
    model: str | None = None
    sample: str | None = None
    reasoning_tokens: str | None = None
    answer_tokens: str | None = None
    """None with a reasoning column: the output less the reasoning."""
    group: str | None = None
    group_until: str | None = None
    """The group is the part of its column before this text; None takes all of it."""

    def columns(self) -> list[str]:
        optional = (self.model, self.sample, self.reasoning_tokens, self.answer_tokens, self.group)
        return [self.prompt, *self.output_tokens, *(name for name in optional if name)]


def prompt_hash(prompt: str, salt: str = "") -> str:
    """Return the SHA-256 of the normalised prompt, in hex: the key of splits and of samples."""
    return hashlib.sha256(f"{salt}|{normalised(prompt)}".encode()).hexdigest()


def to_records(
    frame: pd.DataFrame, fields: FieldMap, *, model: str = "", path: str | Path | None = None
) -> tuple[list[PromptResponse], int]:
    """Check every row and turn it into records, one per length column.

    Returns the records and the number of lengths of 0, which are dropped. A bad row has a prompt
    that is empty or no text, or a length that is missing, negative or no number.

    Raises:
        DataError: a column is missing, or a row is bad.
    """
    require_columns(frame, fields.columns(), path)

    def column(name: str | None, otherwise: Any = None) -> list[Any]:
        return frame[name].tolist() if name else [otherwise] * len(frame)

    def checked(name: str | None, convert: Callable[[Any], Any], wrong: str) -> list[Any]:
        cells = column(name)
        found = list(map(convert, cells)) if name else cells
        if name and None in found:
            row = found.index(None)
            text = f"{name} is {cells[row]!r}, {wrong}; mend the row"
            raise DataError(text, path=path, row=frame.index[row])
        return found

    counts = partial(checked, convert=count_of, wrong="no whole number of tokens >= 0")
    prompts, samples = checked(fields.prompt, prompt_of, "no text"), counts(fields.sample)
    reasoning, answer = counts(fields.reasoning_tokens), counts(fields.answer_tokens)
    columns = [counts(name) for name in fields.output_tokens] or [
        [first + second for first, second in zip(reasoning, answer, strict=True)]
    ]
    if fields.reasoning_tokens and not fields.answer_tokens:
        answer = [whole - part for whole, part in zip(columns[0], reasoning, strict=True)]
        for row, rest in enumerate(answer):
            if rest < 0:
                of = f"{reasoning[row]} reasoning tokens of {columns[0][row]} output tokens"
                raise DataError(f"{of}; the output must hold both", path=path, row=row)
    names, groups = column(fields.model, model), column(fields.group, "")
    rows = list(zip(prompts, names, samples, reasoning, answer, groups, strict=True))
    records = [
        PromptResponse(
            prompt=prompt,
            output_tokens=length,
            model=str(name),
            sample=sample or number,
            reasoning_tokens=thought,
            answer_tokens=said,
            group=str(group).partition(fields.group_until)[0] if fields.group_until else str(group),
        )
        for number, lengths in enumerate(columns)
        for length, (prompt, name, sample, thought, said, group) in zip(lengths, rows, strict=True)
        if length > 0
    ]
    return records, len(frame) * len(columns) - len(records)


def read_records(
    names: Paths,
    options: RecordOptions,
    label: str = "output_tokens",
    group: str | None = None,
    *,
    has_details: bool = False,
) -> tuple[list[PromptResponse], int]:
    """Return the records of a table or log, and the number of answers of 0 tokens.

    Args:
        label: the column of lengths where the options name none.
        group: column of the groups.
        has_details: models, samples and parts of the lengths are read where they are known.
    """
    if not options.length_column and label not in get_args(Label):
        options = replace(options, length_column=(label,))
    lengths = options.length_column or (label,)
    extras = {"sample": ("sample",), "group": (group or "group",)}
    needs = ("prompt", "output_tokens" if options.length_column else label)
    found = read_log(names, options, needs=needs, extras=extras)
    frame, path = found.frame, found.files[0]
    if options.length_column:
        frame = frame.rename(columns={"output_tokens": lengths[0]})
    wanted = ["reasoning_tokens", "answer_tokens", "sample", "model", "group"] * has_details
    wanted += ["model"] * (options.model_column is not None) + ["group"] * (group is not None)
    if group is not None and "group" not in frame:
        require_columns(frame, [group], path)
    known = {name: name for name in wanted if name in frame and not frame[name].isna().any()}
    records, num_empty = to_records(
        frame, FieldMap(output_tokens=lengths, **known), model=options.model or "", path=path
    )
    return records, num_empty + found.left_out.get(NO_ANSWER, 0)
