"""Labels: records -> a `datasets.Dataset` of labelled prompts.

The label is the length to rank by: all output tokens, or of a reasoning model only the reasoning or
only the answer. Repeated samples of a prompt form one labelled prompt, so no split separates them.
Prompts stay on disk; only columns of numbers are in memory. N prompts, K lengths.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import DataError
from lengthwise.tables.options import RecordOptions
from training.config import Label, Repeats
from training.data.records import Dataset, column, fingerprint, prompt_hash, read_records

logger = logging.getLogger(__name__)

_PROMPT: Final = {
    "prompt": "large_string",
    "key": "binary",
    "model": "string",
    "group": "string",
    "source": "string",
}
"""Columns of labelled prompts and their types, beside `lengths`: those of one model's responses in
tokens, >= 1, in the order of the samples. `source` is the data set; lengths of different ones are
not compared."""


def texts(items: Dataset) -> list[str]:
    """Return the prompts of a part that fits into memory."""
    return list(column(items, "prompt").to_pylist())


def lengths_of(items: Dataset) -> list[list[int]]:
    return list(column(items, "lengths").to_pylist())


def observed(items: Dataset) -> NDArray[np.float64]:
    """Return the lengths of the first samples, shape (N,)."""
    return np.asarray(pc.list_element(column(items, "lengths"), 0), np.float64)


def targets(items: Dataset, repeats: Repeats) -> NDArray[np.float64]:
    """Return the training labels in tokens, shape (N,): first samples, or geometric means."""
    if repeats == "first":
        return observed(items)
    rows = (
        row for batch in items.select_columns(["lengths"]).iter(1000) for row in batch["lengths"]
    )
    means = (math.exp(sum(map(math.log, row)) / len(row)) for row in rows)
    return np.fromiter(means, np.float64, len(items))


def labelled(
    items: Dataset,
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    **constants: str,
) -> Dataset:
    """Return rows with their lengths, so many of each; constants replace or add columns."""
    from datasets import Features, List, Value

    ends = np.concatenate([[0], np.cumsum(counts)])

    def attach(table: Any, places: list[int]) -> Any:
        edges = ends[places[0] : places[-1] + 2]
        columns = {name: table[name] for name in _PROMPT if name in table.column_names}
        columns |= {name: pa.repeat(value, len(table)) for name, value in constants.items()}
        offsets = pa.array(edges - edges[0], pa.int32())
        values = lengths[edges[0] : edges[-1]]
        return pa.table(columns | {"lengths": pa.ListArray.from_arrays(offsets, values)})

    features = {name: Value(kind) for name, kind in _PROMPT.items()}
    features |= {"lengths": List(Value("int64"))}
    is_all = np.array_equal(rows, np.arange(len(rows)))
    chosen = items.select(range(len(rows)) if is_all else rows)
    parts = (part.astype(np.int64).tobytes() for part in (rows, counts, lengths))
    return chosen.with_format("arrow").map(
        attach,
        batched=True,
        with_indices=True,
        remove_columns=items.column_names,
        features=Features(features),
        new_fingerprint=fingerprint(items._fingerprint, *parts, constants),
    ).with_format(None)  # fmt: skip


def label_prompts(records: Dataset, label: Label = "output_tokens", source: str = "") -> Dataset:
    """Group the records by (normalised prompt, model), in order of first appearance.

    Lengths of 0 (a reasoning model that did not reason) are left out.
    """
    lists = column(records, "output_tokens").combine_chunks()
    lengths_NC = np.asarray(lists.flatten()).reshape(len(records), -1)
    if label != "output_tokens":
        part = column(records, label)
        if part.null_count:
            raise DataError(f"the data has no {label}; map that column, or choose another label")
        lengths_NC = np.where(lengths_NC > 0, np.asarray(part)[:, None], 0)
    # All first samples come first, then all second ones.
    lengths, number = lengths_NC.T.reshape(-1), np.arange(lengths_NC.shape[1])
    sample = np.asarray(column(records, "sample"))
    samples = np.where(sample > 0, sample, number[:, None]).reshape(-1)
    (place,) = np.nonzero(lengths > 0)
    rows = place % max(len(records), 1)
    codes = _codes(records, "key") * len(records) + _codes(records, "model")
    group = _numbered(pa.array(codes[rows]))[0]
    first = np.unique(group, return_index=True)[1]
    order = np.lexsort((samples[place], group))
    return labelled(records, rows[first], np.bincount(group), lengths[place][order], source=source)


def _codes(items: Dataset, name: str) -> NDArray[np.int64]:
    """Return a number for each value of a column, by first appearance."""
    return _numbered(column(items, name).combine_chunks())[0]


def _numbered(values: Any) -> tuple[NDArray[np.int64], Any]:
    """Return a number for each value, by first appearance, and the different values."""
    found = values.dictionary_encode()
    return np.asarray(found.indices).astype(np.int64), found.dictionary


def of_one_model(
    prompts: Dataset, *, model: str | None, consensus: bool, held_out: float
) -> Dataset:
    """Return one label per prompt, from one model's responses or from the consensus of several.

    Args:
        model: None if the prompts hold a single model, or for a consensus.
        held_out: part of the models that a consensus leaves out (`is_held_out`).
    """
    codes, different = _numbered(column(prompts, "model").combine_chunks())
    names = different.to_pylist()
    models = sorted(names if model is None else {model}.intersection(names))
    if consensus and len(models) > 1:
        learnt = [code for code, name in enumerate(names) if not is_held_out(name, held_out)]
        return consensus_of(prompts.select(np.flatnonzero(np.isin(codes, learnt))))
    if len(models) != 1:
        known = ", ".join(models[:5]) if models else f"none called {model!r}"
        raise DataError(
            f"the data holds {len(models)} models ({known}...); choose data.model or data.consensus"
        )
    if len(names) == 1:
        return prompts
    return prompts.select(np.flatnonzero(codes == names.index(models[0])))


def consensus_of(prompts: Dataset) -> Dataset:
    """Return one label per prompt: the mean log length over models, each less its own mean.

    A model with twice the length of another on every prompt gives the same label. The mean over
    models is the best guess for a model that is not in the data.
    """
    keys, models = _codes(prompts, "key"), _codes(prompts, "model")
    logs = np.fromiter(map(math.log, observed(prompts)), np.float64, len(prompts))
    # The sums add in the order of the rows: another order has other last digits.
    offsets = np.bincount(models, logs) / np.bincount(models)
    centre = sum(offsets.tolist()) / len(offsets)
    means = np.bincount(keys, logs - offsets[models]) / np.bincount(keys)
    lengths = np.array([max(1, round(math.exp(centre + mean))) for mean in means.tolist()])
    first = np.unique(keys, return_index=True)[1]
    return labelled(prompts, first, np.ones_like(first), lengths, model="consensus")


def is_held_out(model: str, fraction: float) -> bool:
    """Return whether a model is kept for tests; its name alone decides."""
    return int(prompt_hash(model, salt="lengthwise-models")[:12], 16) / 2**48 < fraction


def union_of(labels: Sequence[Dataset]) -> Dataset:
    """Return the prompts of every label; one that an earlier label has is not repeated."""
    from datasets import concatenate_datasets

    every = concatenate_datasets(list(labels))
    keys, number = _codes(every, "key"), np.repeat(np.arange(len(labels)), list(map(len, labels)))
    first = np.empty(len(every), np.int64)
    first[keys[::-1]] = number[::-1]
    return every.select(np.flatnonzero(first[keys] == number))


def side_by_side(
    items: Dataset, labels: Sequence[Dataset], lengths: Callable[[Dataset], ArrayLike] = observed
) -> NDArray[np.float64]:
    """Return the lengths of prompts by every label, (N, K); NaN where a prompt has no such one."""
    parts = {id(part): part for part in (items, *labels)}
    chunks = [chunk for part in parts.values() for chunk in _identity(part).chunks]
    codes, _ = _numbered(pa.concat_arrays(chunks))
    pieces = np.split(codes, np.cumsum([len(part) for part in parts.values()])[:-1])
    found = dict(zip(parts, pieces, strict=True))
    mine, theirs = found[id(items)], [found[id(part)] for part in labels]
    found_NK = np.empty((len(items), len(labels)))
    for number, (part, at) in enumerate(zip(labels, theirs, strict=True)):
        known = np.full(len(codes), np.nan)
        known[at] = lengths(part)
        found_NK[:, number] = known[mine]
    return found_NK


def _identity(items: Dataset) -> Any:
    """Return what tells a labelled prompt from others: its data set and its key."""
    source = column(items, "source").cast(pa.binary())
    return pc.binary_join_element_wise(source, column(items, "key"), b"|")


def source_codes(items: Dataset) -> NDArray[np.int64]:
    """Return the number of each prompt's data set, by the order of their names."""
    codes, names = _numbered(column(items, "source").combine_chunks())
    return np.argsort(np.argsort(names.to_pylist()))[codes]


def distinct(items: Dataset) -> Dataset:
    """Return each prompt once, as it was last written, in order of first appearance."""
    keys = _codes(items, "key")
    last = np.empty(int(keys.max(initial=-1)) + 1, np.int64)
    last[keys] = np.arange(len(items))
    return items.select(last)


def without(items: Dataset, others: Sequence[Dataset]) -> Dataset:
    """Return the prompts that are in none of the others, by their keys."""
    known = pa.chunked_array(
        [chunk for each in others for chunk in column(each, "key").chunks], pa.binary()
    )
    is_known = pc.is_in(column(items, "key"), value_set=known.combine_chunks())
    return items.select(np.flatnonzero(~np.asarray(is_known)))


@dataclass(frozen=True, kw_only=True)
class TableOptions(RecordOptions):
    """A table and its columns."""

    data: tuple[str, ...]
    """Files, folders or patterns, read as one log: a table (.parquet, .jsonl, .csv) or a log (see
    `lengthwise inspect`)."""
    group_column: str | None = None
    """Task or cluster: also give tau_b within groups."""


def read_prompts(options: TableOptions, label: str) -> Dataset:
    """Return the distinct prompts of a table, with the lengths of one model's responses.

    `label` is the column of lengths if the options name none.
    """
    records, num_empty = read_records(options.data, options, label, options.group_column)
    models = sorted(column(records, "model").unique().to_pylist())
    if len(models) != 1:
        known = ", ".join(models[:9]) if models else f"not {options.model!r}"
        raise DataError(f"the rows are of {known}; choose one with --model", path=options.data[0])
    if num_empty:
        logger.info("%d rows with a length of 0 dropped", num_empty)
    return label_prompts(records)
