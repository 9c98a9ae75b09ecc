"""Options of every command that reads a log or table."""

from dataclasses import dataclass
from typing import Final, Literal

from lengthwise.tables.times import TimeUnit

SKIP: Final = (
    "mend the row, or leave out every bad row with --on-bad-rows skip (of fit: --data.on-bad-rows)"
)


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Columns of a table or log, and the effect of its bad rows."""

    prompt_column: str | None = None
    """Prompts: a column, or a path into it, such as request.messages; default: prompt."""
    length_column: tuple[str, ...] = ()
    """Output tokens, also by path (usage.completion_tokens), or texts with --tokenizer; default:
    the names of known formats, of an evaluation the bundle's label."""
    on_bad_rows: Literal["error", "skip"] = "error"
    """A row that cannot be understood ends the command, or is left out and counted."""
    censored: Literal["leave-out", "keep"] = "leave-out"
    """Rows whose length is a lower bound (max_tokens reached, a cut log, a broken stream)."""
    tokenizer: str | None = None
    """Counts the tokens of answers without a count: a folder or file with tokenizer.json, or the
    name of a tokenizer of the Hugging Face hub."""


@dataclass(frozen=True, kw_only=True)
class RecordOptions(ReadingOptions):
    """Columns of responses to learn from, of one model."""

    model_column: str | None = None
    """The model that responded; needed if the rows of a table are of several models."""
    model: str | None = None
    """Only this model's responses."""


@dataclass(frozen=True, kw_only=True)
class TraceOptions(ReadingOptions):
    """Columns of a trace, whose requests arrive at times."""

    prompt_tokens_column: str | None = None
    """Prompt tokens, also by path; default: the names of known formats."""
    arrival_column: str | None = None
    """Times of arrival: a wall clock, or numbers; default: the names of known formats."""
    time_unit: TimeUnit | None = None
    """Unit of numbers as times; default: by their magnitude or name, an error if both are open."""
    file_times: Literal["together", "in-turn"] | None = None
    """Times since a start in several files: together (pieces of one log), or in-turn (each file
    after the one before); default: together, an error if several files start at one time."""
