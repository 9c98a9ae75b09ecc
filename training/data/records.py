"""Records: a prompt and the length of a model's response to it. No torch.

The Hugging Face `datasets` library reads parquet and CSV. A `FieldMap` names the columns. Each row
is checked and its prompt hashed here, once.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lengthwise.errors import DataError
from lengthwise.tables import reading
from lengthwise.tables.columns import LENGTH, MODEL, PROMPT, require_columns
from lengthwise.tables.prompt_text import normalised, prompt_of
from lengthwise.tables.reading import SKIP, OnBadRows
from lengthwise.tables.values import count_of

if TYPE_CHECKING:
    import pandas as pd
Value = TypeVar("Value")
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


def read_table(
    path: str | Path, columns: Sequence[str] = (), on_bad_rows: OnBadRows = "error"
) -> pd.DataFrame:
    """Read a table or a log.

    `columns` that the table lacks are read as paths (`usage.completion_tokens`).

    Raises:
        DataError: the file is missing, empty, damaged or of another format.
    """
    return reading.read_table(Path(path), _load, columns=columns, on_bad_rows=on_bad_rows)


def _load(path: Path, kind: str) -> pd.DataFrame:
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # Errors are raised as well.
    make = {"parquet": datasets.Dataset.from_parquet, "csv": datasets.Dataset.from_csv}[kind]
    # A private cache: the shared one goes stale when a file changes, and a damaged one breaks runs.
    with tempfile.TemporaryDirectory(prefix="lengthwise-") as cache:
        try:
            frame: pd.DataFrame = make(str(path), cache_dir=cache, keep_in_memory=True).to_pandas()
        except Exception as error:
            if _has_no_rows(path, error):
                raise DataError(reading.NO_ROWS, path=path) from error
            reason = str(error.__cause__ or error).splitlines()[0]
            raise DataError(f"cannot be read as {kind}: {reason}", path=path) from error
    return frame


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
    if on_bad_rows == "skip":
        frame = _without_bad_rows(frame, fields, path)
    prompts = prompts_of(frame[fields.prompt], path)
    models = [str(name) for name in frame[fields.model]] if fields.model else [model] * len(prompts)
    groups = [str(name) for name in frame[fields.group]] if fields.group else [""] * len(prompts)
    if fields.group_until:
        groups = [name.partition(fields.group_until)[0] for name in groups]
    samples = _counts(frame, fields.sample, path) or [0] * len(prompts)
    reasoning = _counts(frame, fields.reasoning_tokens, path)
    answer = _counts(frame, fields.answer_tokens, path)
    columns = [_counts(frame, column, path) for column in fields.output_tokens] or [
        [first + second for first, second in zip(reasoning, answer, strict=True)]
    ]
    if reasoning and not answer:
        answer = [whole - part for whole, part in zip(columns[0], reasoning, strict=True)]
        for row, rest in enumerate(answer):
            if rest < 0:
                of = f"{reasoning[row]} reasoning tokens of {columns[0][row]} output tokens"
                raise DataError(f"{of}; the output must hold both", path=path, row=row)
    records = [
        PromptResponse(
            prompt=prompts[row],
            output_tokens=lengths[row],
            model=models[row],
            sample=samples[row] or number,
            reasoning_tokens=reasoning[row] if reasoning else None,
            answer_tokens=answer[row] if answer else None,
            group=groups[row],
        )
        for number, lengths in enumerate(columns)
        for row in range(len(prompts))
        if lengths[row] > 0
    ]
    return records, len(prompts) * len(columns) - len(records)


def read_records(
    path: str | Path,
    fields: FieldMap,
    *,
    model: str | None = None,
    on_bad_rows: OnBadRows = "error",
) -> tuple[list[PromptResponse], int]:
    """Return `to_records` of a table or log, of one model only if it is named.

    A log has a column of models.
    """
    frame = read_table(path, fields.columns(), on_bad_rows)
    if model is not None and fields.model is None:
        require_columns(frame, ["model"], path, {"model": MODEL})
        fields = replace(fields, model="model")
    records, num_empty = to_records(frame, fields, path=path, on_bad_rows=on_bad_rows)
    return [r for r in records if model is None or r.model == model], num_empty


def _without_bad_rows(
    frame: pd.DataFrame, fields: FieldMap, path: str | Path | None
) -> pd.DataFrame:
    parts = (fields.sample, fields.reasoning_tokens, fields.answer_tokens)
    reasons = frame[fields.prompt].map(lambda cell: prompt_of(cell) is None)
    reasons = reasons.map({True: "prompt is no text", False: ""})
    for name in [*fields.output_tokens, *filter(None, parts)]:
        is_wrong = frame[name].map(lambda cell: count_of(cell) is None)
        reasons[is_wrong & (reasons == "")] = f"{name} is no number of tokens"
    reading.log_left_out(Counter(reasons[reasons != ""]), len(frame), path)
    if (reasons != "").all():
        raise DataError(
            "not one row can be used; give the columns of prompts and lengths", path=path
        )
    return frame[reasons == ""]


def _has_no_rows(path: Path, error: Exception) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return "corresponds to no data" in str(error) or pq.read_metadata(path).num_rows == 0
    except (pa.ArrowException, OSError):
        return False


def prompts_of(column: pd.Series[Any], path: str | Path | None) -> list[str]:
    """Return the checked prompts of a column, in its order."""
    return _checked(column, "prompt", prompt_of, "no text", path)


def _counts(frame: pd.DataFrame, column: str | None, path: str | Path | None) -> list[int]:
    if column is None:
        return []
    return _checked(frame[column], column, count_of, "not a whole number of tokens >= 0", path)


def _checked(
    column: pd.Series[Any],
    name: str,
    read: Callable[[Any], Value | None],
    wrong: str,
    path: str | Path | None,
) -> list[Value]:
    values = []
    for row, cell in zip(column.index, column.tolist(), strict=True):
        if (value := read(cell)) is None:
            raise DataError(f"{name} is {cell!r}, {wrong}; {SKIP}", path=path, row=row)
        values.append(value)
    return values
