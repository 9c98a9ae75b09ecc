"""Labelled prompts of any table or log; options name the columns."""

import logging
from dataclasses import dataclass

from lengthwise.errors import DataError
from lengthwise.tables.reading import OnBadRows
from training.data.labels import LabelledPrompt, label_prompts
from training.data.records import FieldMap, read_records

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """A table and its columns."""

    data: str
    """A table (.parquet, .jsonl, .csv) or a log (of an OpenAI-style gateway, vLLM, LiteLLM,
    Langfuse)."""
    prompt_column: str = "prompt"
    """A column, or a path into it, such as request.messages."""
    length_column: tuple[str, ...] = ()
    """Tokens, also by path (usage.completion_tokens); several are repeated samples of each prompt;
    default: the bundle's label."""
    group_column: str | None = None
    """Task or cluster: also give tau_b within groups."""
    model_column: str | None = None
    """The model that responded; needed if the table holds several."""
    model: str | None = None
    """Only rows of this model."""
    on_bad_rows: OnBadRows = "error"
    """A row without a prompt or a length ends the command, or is left out and counted."""


def read_prompts(options: TableOptions, label: str) -> list[LabelledPrompt]:
    """Return the distinct prompts of a table, with the lengths of one model's responses.

    `label` is the column of lengths if the options name none.
    """
    fields = FieldMap(
        prompt=options.prompt_column,
        output_tokens=options.length_column or (label,),
        model=options.model_column,
        group=options.group_column,
    )
    records, num_empty = read_records(
        options.data, fields, model=options.model, on_bad_rows=options.on_bad_rows
    )
    models = sorted({record.model for record in records})
    if len(models) != 1:
        known = ", ".join(models[:9]) if models else f"not {options.model!r}"
        raise DataError(f"the rows are of {known}; choose one with --model", path=options.data)
    if num_empty:
        logger.info("%d rows with a length of 0 dropped", num_empty)
    return label_prompts(records)
