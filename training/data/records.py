"""Records: prompts and the lengths of a model's responses, as a `datasets.Dataset` on disk.

A `FieldMap` names the columns of a table. Each row is checked and its prompt hashed here, once; a
later run reads the Dataset from the cache of Hugging Face Datasets. No torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lengthwise import tables
from lengthwise.conversation import described
from lengthwise.errors import DataError
from lengthwise.tables.checks import NO_ANSWER
from lengthwise.tables.columns import NO_ROWS
from lengthwise.tables.files import Paths, digest_of, write_whole
from lengthwise.tables.options import RecordOptions
from lengthwise.tables.prompt_text import normalised, prompt_of
from lengthwise.tables.reading import read_log, require_columns
from lengthwise.tables.requests import no_column
from lengthwise.tables.values import count_of, unpacked
from training.config import Label

if TYPE_CHECKING:
    from datasets import Dataset as Dataset
else:  # The library takes seconds to import; jsonargparse runs the block above where options are.
    Dataset = Any

Row = Mapping[str, Any]
Notes = dict[str, Any]
"""Reasons and counts of rows left out of a Dataset, kept beside it."""
_CHUNK: Final = 4096
_RECORD: Final = {
    "prompt": "large_string",
    "key": "binary",
    "model": "string",
    "group": "string",
    "sample": "int64",
    "reasoning_tokens": "int64",
    "answer_tokens": "int64",
}
"""Columns of a Dataset of records and their types, beside `output_tokens`, a list of lengths. A
length of 0 is no response; `key` is the hash of the prompt; parts of a length may be null."""

logger = logging.getLogger(__name__)


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


def fingerprint(*parts: object) -> str:
    """Return the name of a Dataset in the cache: of what it is made of, and of the code."""
    digest = hashlib.sha256(_code())
    for part in parts:
        digest.update(part if isinstance(part, bytes) else f"{part!r}|".encode())
    return digest.hexdigest()[:32]


@cache
def _code() -> bytes:
    """Return the hash of the code that reads: another version of it reads anew."""
    folders = (Path(tables.__file__).parent, Path(__file__).parent)
    sources = [path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"".join(sources)).digest()


def stored(rows: Callable[[Notes], Iterator[Row]], *identity: object) -> tuple[Dataset, Notes]:
    """Return checked rows as a Dataset in the cache, and notes; one identity is made once.

    `rows` yields the records and fills the notes on the way; `lines` of these are logged again
    with a Dataset from the cache.
    """
    from datasets import Dataset, Features, List, Value, config, disable_progress_bars
    from datasets.exceptions import DatasetGenerationError

    if not sys.stderr.isatty():
        disable_progress_bars()
    name = fingerprint(*identity)
    place = Path(config.HF_DATASETS_CACHE, "lengthwise", f"{name}.json")

    made: Notes = {}

    def noted() -> Iterator[Row]:
        yield from rows(made)
        write_whole(place, lambda part: part.write_text(json.dumps(made)), make_folder=True)

    columns = {name: Value(kind) for name, kind in _RECORD.items()}
    features = Features(columns | {"output_tokens": List(Value("int64"))})
    try:
        dataset = Dataset.from_generator(noted, features=features, fingerprint=name)
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None
    notes = made or (json.loads(place.read_text()) if place.is_file() else {})
    for line in notes.get("lines", ()) if not made else ():
        logger.info("%s", line)
    return dataset, notes


def checked(
    rows: Iterable[tuple[int, Row]],
    fields: FieldMap,
    model: str = "",
    path: str | Path | None = None,
) -> Iterator[Row]:
    """Yield numbered rows of a table as records.

    Raises:
        DataError: a column is missing; or a row has a prompt that is empty or no text, or a length
            that is missing, negative or no number.
    """
    numbered = iter(rows)
    first = list(islice(numbered, _CHUNK))
    if not first:
        raise DataError(NO_ROWS, path=path)
    there = dict.fromkeys(name for _, row in first for name in row)
    if missing := [name for name in dict.fromkeys(fields.columns()) if name not in there]:
        raise DataError(no_column(missing, there), path=path)
    for number, row in chain(first, numbered):
        try:
            yield _record(row, fields, model)
        except ValueError as error:
            raise DataError(str(error), path=path, row=number) from None


def _record(row: Row, fields: FieldMap, model: str) -> Row:
    def count(name: str | None) -> int | None:
        if name is None:
            return None
        if (found := count_of(row.get(name))) is None:
            text = f"{name} is {row.get(name)!r}, no whole number of tokens >= 0; mend the row"
            raise ValueError(text)
        return found

    if (prompt := prompt_of(row.get(fields.prompt))) is None:
        raise ValueError(f"{fields.prompt} is {row.get(fields.prompt)!r}, no text; mend the row")
    reasoning, answer = count(fields.reasoning_tokens), count(fields.answer_tokens)
    lengths = [count(name) for name in fields.output_tokens] or [(reasoning or 0) + (answer or 0)]
    if reasoning is not None and answer is None:
        answer = (lengths[0] or 0) - reasoning
        if answer < 0:
            of = f"{reasoning} reasoning tokens of {lengths[0]} output tokens"
            raise ValueError(f"{of}; the output must hold both")
    group = str(row.get(fields.group or "", ""))
    return {
        "prompt": prompt,
        "key": bytes.fromhex(prompt_hash(prompt)),
        "model": str(row.get(fields.model, "")) if fields.model else model,
        "group": group.partition(fields.group_until)[0] if fields.group_until else group,
        "sample": count(fields.sample) or 0,
        "reasoning_tokens": reasoning,
        "answer_tokens": answer,
        "output_tokens": lengths,
    }


def read_records(
    table: Paths | Dataset,
    options: RecordOptions,
    label: str | None = "output_tokens",
    group: str | None = None,
    *,
    has_details: bool = False,
    description: int | None = None,
) -> tuple[Dataset, int]:
    """Return the records of a table or log, and the number of answers of 0 tokens.

    Args:
        table: names of files, or rows of the hub.
        label: the column of lengths where the options name none; None reads prompts only, with
            lengths of 0.
        group: column of the groups.
        description: version of the descriptions that take the place of prompts; None: prompts.
        has_details: models, samples and parts of the lengths are read where they are known.
    """
    if label is None:
        options = replace(options, length_column=())
    elif not options.length_column and label not in get_args(Label):
        options = replace(options, length_column=(label,))
    identity = getattr(table, "_fingerprint", None) or digest_of(table)
    counter = Path(options.tokenizer or "none")
    files = (path for path in (counter, counter / "tokenizer.json") if path.is_file())
    identity += "".join(map(digest_of, files))
    read = partial(_log_rows, table, options, label, group, has_details, description)
    records, notes = stored(read, identity, options, label, group, has_details, description)
    return records, num_empty(records) + notes.get("no_answer", 0)


def column(items: Dataset, name: str) -> Any:
    """Return a column as Arrow's chunked array; of an unselected Dataset it stays on disk."""
    kind = items.features.arrow_schema.field(name).type
    chunks: list[Any] = []
    for table in items.select_columns([name]).with_format("arrow").iter(_CHUNK):
        found = table.column(name)
        # A selection has a chunk, of a kilobyte in Python, for each row.
        is_selection = found.num_chunks > len(found) // 100 + 2
        chunks += [found.combine_chunks()] if is_selection else found.chunks
    return pa.chunked_array(chunks, kind)


def num_responses(records: Dataset) -> int:
    """Return the number of lengths above 0."""
    return int(np.count_nonzero(pc.list_flatten(column(records, "output_tokens"))))


def num_empty(records: Dataset) -> int:
    """Return the number of lengths of 0."""
    lengths = pc.list_flatten(column(records, "output_tokens"))
    return len(lengths) - int(np.count_nonzero(lengths))


def _log_rows(
    table: Paths | Dataset,
    options: RecordOptions,
    label: str | None,
    group: str | None,
    has_details: bool,
    description: int | None,
    notes: Notes,
) -> Iterator[Row]:
    lengths = () if label is None else options.length_column or (label,)
    extras = {"sample": ("sample",), "group": (group or "group",)}
    extras |= {"body": (options.prompt_column or "prompt",)} if description else {}
    ours = "output_tokens" if options.length_column else label
    with _as_files(table) as names:
        found = read_log(
            names, options, needs=("prompt", ours) if ours else ("prompt",), extras=extras
        )
    frame, path = found.frame, found.files[0]
    if description:
        frame["prompt"] = [
            described(unpacked(body)) for body in frame["body" if "body" in frame else "prompt"]
        ]
    notes |= {"no_answer": found.left_out.get(NO_ANSWER, 0), "lines": found.short_form()}
    if options.length_column:
        frame = frame.rename(columns={"output_tokens": lengths[0]})
    wanted = ["reasoning_tokens", "answer_tokens", "sample", "model", "group"] * has_details
    wanted += ["model"] * (options.model_column is not None) + ["group"] * (group is not None)
    if group is not None and "group" not in frame:
        require_columns(frame, [group], path)
    known = {name: name for name in wanted if name in frame and not frame[name].isna().any()}
    pieces = (frame.iloc[start : start + _CHUNK] for start in range(0, len(frame), _CHUNK))
    rows: Iterator[Any] = (row for piece in pieces for row in piece.to_dict("records"))
    fields = FieldMap(output_tokens=lengths, **known)
    yield from checked(zip(frame.index, rows, strict=True), fields, options.model or "", path)


@contextmanager
def _as_files(table: Paths | Dataset) -> Iterator[Paths]:
    """Yield names of files; the rows of a Dataset become one."""
    if isinstance(table, str | PathLike | Sequence):
        yield table
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        table.to_parquet(path)
        yield path
