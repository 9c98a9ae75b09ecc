"""Labelled prompts of any table or log; options name the columns."""

import logging
from dataclasses import dataclass

from lengthwise.errors import DataError
from training.config import ColumnOptions
from training.data.labels import LabelledPrompt, label_prompts
from training.data.records import read_records

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TableOptions(ColumnOptions):
    """A table and its columns."""

    data: str
    """A table (.parquet, .jsonl, .csv) or a log (of an OpenAI-style gateway, vLLM, LiteLLM,
    Langfuse)."""
    group_column: str | None = None
    """Task or cluster: also give tau_b within groups."""


def read_prompts(options: TableOptions, label: str) -> list[LabelledPrompt]:
    """Return the distinct prompts of a table, with the lengths of one model's responses.

    `label` is the column of lengths if the options name none.
    """
    records, num_empty = read_records(options.data, options, label, options.group_column)
    models = sorted({record.model for record in records})
    if len(models) != 1:
        known = ", ".join(models[:9]) if models else f"not {options.model!r}"
        raise DataError(f"the rows are of {known}; choose one with --model", path=options.data)
    if num_empty:
        logger.info("%d rows with a length of 0 dropped", num_empty)
    return label_prompts(records)
