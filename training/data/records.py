"""Records: a prompt and the length of a model's response to it. No torch.

Tables are read by the Hugging Face `datasets` library (parquet, JSONL, CSV). A `FieldMap` names the
columns; every row is checked here, once.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scoring_service.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

TABLE_SUFFIXES: Final = (".parquet", ".jsonl", ".csv")
_NO_ROWS: Final = "the table has no rows; give some"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldMap:
    """Column names of a table; None for a column that it lacks."""

    prompt: str = "prompt"
    output_tokens: tuple[str, ...] = ("output_tokens",)
    """Several columns are repeated samples of the same prompt, first the one that tests use; with
    none, the output is reasoning plus answer."""
    model: str | None = None
    sample: str | None = None
    reasoning_tokens: str | None = None
    answer_tokens: str | None = None
    """None with a reasoning column: the output less the reasoning."""
    group: str | None = None
    group_until: str | None = None
    """The group is the part of its column before this text; None takes all of it."""

    def columns(self) -> list[str]:
        """Return the columns that the map names."""
        optional = (self.model, self.sample, self.reasoning_tokens, self.answer_tokens, self.group)
        return [self.prompt, *self.output_tokens, *(name for name in optional if name)]


def normalise(prompt: str) -> str:
    """Return the prompt in lower case with single spaces; equal results mean the same prompt."""
    return " ".join(prompt.lower().split())


def prompt_hash(prompt: str, salt: str = "") -> str:
    """Return the SHA-256 of the normalised prompt, in hex: the key of splits and of samples."""
    return hashlib.sha256(f"{salt}|{normalise(prompt)}".encode()).hexdigest()


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a parquet, JSONL or CSV file through the `datasets` library.

    Raises:
        DataError: no such file, another format, empty, or damaged.
    """
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # Errors are raised as well.
    path = Path(path)
    make = (datasets.Dataset.from_parquet, datasets.Dataset.from_json, datasets.Dataset.from_csv)
    readers = dict(zip(TABLE_SUFFIXES, make, strict=True))
    if path.suffix not in readers:
        raise DataError(
            f"format {path.suffix!r} is unknown; use one of {sorted(readers)}", path=path
        )
    if not path.is_file() or path.stat().st_size == 0:
        state = "is empty" if path.is_file() else "does not exist"
        raise DataError(f"the file {state}; give a table", path=path)
    # A private cache: the shared one goes stale when a file changes, and a damaged one breaks runs.
    with tempfile.TemporaryDirectory(prefix="lengthwise-") as cache:
        try:
            table = readers[path.suffix](str(path), cache_dir=cache, keep_in_memory=True)
            frame: pd.DataFrame = table.to_pandas()
        except Exception as error:
            if _has_no_rows(path, error):
                raise DataError(_NO_ROWS, path=path) from error
            reason = str(error.__cause__ or error).splitlines()[0]
            raise DataError(f"cannot be read as {path.suffix[1:]}: {reason}", path=path) from error
    if frame.empty:
        raise DataError(_NO_ROWS, path=path)
    return frame


def require_columns(frame: pd.DataFrame, names: Sequence[str], path: str | Path | None) -> None:
    """Check that a table has these columns."""
    if missing := [name for name in names if name not in frame.columns]:
        have = ", ".join(map(str, frame.columns))
        raise DataError(
            f"no column {', '.join(map(repr, missing))}; the columns are: {have}", path=path
        )


def to_records(
    frame: pd.DataFrame, fields: FieldMap, *, model: str = "", path: str | Path | None = None
) -> tuple[list[PromptResponse], int]:
    """Check every row and turn it into records, one per length column.

    Returns the records and the number of lengths of 0, which are dropped: an aborted request says
    nothing about the length of its response.

    Raises:
        DataError: a column is missing, a prompt is empty or not text, a length is missing, negative
            or not a number. The message names the row.
    """
    require_columns(frame, fields.columns(), path)
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
        answer = _remainder(columns[0], reasoning, path)
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
    path: str | Path, fields: FieldMap, *, model: str | None = None
) -> tuple[list[PromptResponse], int]:
    """Read and check a table; returns what `to_records` does, of one model if one is named."""
    records, num_empty = to_records(read_table(path), fields, path=path)
    return [r for r in records if model is None or r.model == model], num_empty


def _has_no_rows(path: Path, error: Exception) -> bool:
    """Return whether `datasets` failed because the table is empty; it has no error for that."""
    if path.suffix == ".csv":
        return "corresponds to no data" in str(error)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return path.suffix == ".parquet" and bool(pq.read_metadata(path).num_rows == 0)
    except (pa.ArrowException, OSError):
        return False


def prompts_of(column: pd.Series[Any], path: str | Path | None) -> list[str]:
    """Return the checked prompts of a column, in its order."""
    prompts = column.tolist()
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt, str) or not prompt.strip():
            raise DataError(
                f"prompt is {prompt!r}; give non-empty text or drop the row", path=path, row=row
            )
    return prompts


def _remainder(total: list[int], part: list[int], path: str | Path | None) -> list[int]:
    for row, (whole, some) in enumerate(zip(total, part, strict=True)):
        if some > whole:
            raise DataError(
                f"{some} reasoning tokens of {whole} output tokens; the output must hold both",
                path=path,
                row=row,
            )
    return [whole - some for whole, some in zip(total, part, strict=True)]


def _counts(frame: pd.DataFrame, column: str | None, path: str | Path | None) -> list[int]:
    if column is None:
        return []
    values = frame[column].tolist()
    wrong = [row for row, value in enumerate(values) if not _is_count(value)]
    if wrong:
        # One word in a column of a CSV makes text of every number in it; name the word.
        words = (row for row in wrong if not str(values[row]).strip().isdigit())
        row = next(words, wrong[0])
        raise DataError(
            f"{column} is {values[row]!r}; give a whole number of tokens >= 0 or drop the row",
            path=path,
            row=row,
        )
    return [int(value) for value in values]


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0 and value == int(value)
