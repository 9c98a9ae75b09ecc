"""Records: a prompt and the length of a model's response to it. No torch.

A `FieldMap` names the columns of a table. Each row is checked and its prompt hashed here, once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lengthwise.errors import DataError
from lengthwise.tables.prompt_text import normalised, prompt_of
from lengthwise.tables.reading import (
    LENGTH,
    MODEL,
    PROMPT,
    SKIP,
    OnBadRows,
    log_left_out,
    read_table,
    require_columns,
)
from lengthwise.tables.values import count_of
from training.config import ColumnOptions

if TYPE_CHECKING:
    import pandas as pd
_OF_FIT: Final = " (of fit: --data.prompt-column, --data.length-column)"


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
    frame: pd.DataFrame,
    fields: FieldMap,
    *,
    model: str = "",
    path: str | Path | None = None,
    on_bad_rows: OnBadRows = "error",
) -> tuple[list[PromptResponse], int]:
    """Check every row and turn it into records, one per length column.

    Returns the records and the number of lengths of 0, which are dropped. A bad row has a prompt
    that is empty or no text, or a length that is missing, negative or no number.

    Raises:
        DataError: a column is missing, or a row is bad and `on_bad_rows` is "error".
    """
    options = {fields.prompt: PROMPT, **dict.fromkeys(fields.output_tokens, LENGTH)}
    require_columns(frame, fields.columns(), path, options, _OF_FIT)
    counts = (fields.sample, fields.reasoning_tokens, fields.answer_tokens, *fields.output_tokens)
    cells = {fields.prompt: prompt_of, **dict.fromkeys(filter(None, counts), count_of)}
    frame = checked(frame, cells, path, on_bad_rows)

    def column(name: str | None, otherwise: Any = None) -> list[Any]:
        return frame[name].tolist() if name else [otherwise] * len(frame)

    reasoning, answer = column(fields.reasoning_tokens), column(fields.answer_tokens)
    columns = [column(name) for name in fields.output_tokens] or [
        [first + second for first, second in zip(reasoning, answer, strict=True)]
    ]
    if fields.reasoning_tokens and not fields.answer_tokens:
        answer = [whole - part for whole, part in zip(columns[0], reasoning, strict=True)]
        for row, rest in enumerate(answer):
            if rest < 0:
                of = f"{reasoning[row]} reasoning tokens of {columns[0][row]} output tokens"
                raise DataError(f"{of}; the output must hold both", path=path, row=row)
    names, groups = column(fields.model, model), column(fields.group, "")
    prompts, samples = column(fields.prompt), column(fields.sample)
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


def checked(
    frame: pd.DataFrame,
    cells: Mapping[str, Callable[[Any], str | int | None]],
    path: str | Path | None,
    on_bad_rows: OnBadRows = "error",
) -> pd.DataFrame:
    """Return the table with the named columns converted, by `prompt_of` or `count_of`.

    Raises:
        DataError: a cell cannot be converted and `on_bad_rows` is "error", or no row is good.
    """
    import pandas as pd

    wrong: dict[object, str] = {prompt_of: "no text", count_of: "no whole number of tokens >= 0"}
    given = {name: frame[name].tolist() for name in cells}
    converted = {
        name: pd.Series(map(convert, given[name]), frame.index, dtype=object)
        for name, convert in cells.items()
    }
    bad: dict[int, str] = {}
    for name, values in converted.items():
        for position in values.isna().to_numpy().nonzero()[0]:
            bad.setdefault(position, name)
    if bad and on_bad_rows == "error":
        position, name = next(iter(bad.items()))
        reason = f"{name} is {given[name][position]!r}, {wrong[cells[name]]}; {SKIP}"
        raise DataError(reason, path=path, row=frame.index[position])
    log_left_out(Counter(f"{n} is {wrong[cells[n]]}" for n in bad.values()), len(frame), path)
    if len(bad) == len(frame):
        reason = "not one row can be used; give the columns of prompts and lengths"
        raise DataError(reason, path=path)
    return frame.assign(**converted).drop(index=frame.index[list(bad)])


def fields_of(
    columns: ColumnOptions, label: str = "output_tokens", group: str | None = None
) -> FieldMap:
    """Return the columns that options name; `label` is the column of lengths by default."""
    return FieldMap(
        prompt=columns.prompt_column,
        output_tokens=columns.length_column or (label,),
        model=columns.model_column,
        group=group,
    )


def read_records(
    path: str | Path, columns: ColumnOptions, label: str, group: str | None = None
) -> tuple[list[PromptResponse], int]:
    """Return `to_records` of a table or log, of one model only if the options name it.

    A log has a column of models.
    """
    fields, model = fields_of(columns, label, group), columns.model
    frame = read_table(path, columns=fields.columns(), on_bad_rows=columns.on_bad_rows)
    if model is not None and fields.model is None:
        require_columns(frame, ["model"], path, {"model": MODEL})
        fields = replace(fields, model="model")
    records, num_empty = to_records(frame, fields, path=path, on_bad_rows=columns.on_bad_rows)
    return [r for r in records if model is None or r.model == model], num_empty
