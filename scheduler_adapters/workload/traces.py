"""Requests of trace files: the columns of public traces under our names, times in seconds.

requests = read_trace("trace.parquet")
"""

from __future__ import annotations

import logging
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype

from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.scores import PromptScorer
from scheduler_adapters.workload.tables import read_table
from scoring_service.errors import DataError, ScoringError

log = logging.getLogger(__name__)

COLUMN_NAMES: Final = {
    "prompt_tokens": (
        *("prompt_tokens", "num_prompt_tokens", "num_prefill_tokens", "input_tokens"),
        *("input_length", "input_toks", "ContextTokens"),
    ),
    "output_tokens": (
        *("output_tokens", "num_output_tokens", "num_decode_tokens", "output_length"),
        *("output_toks", "GeneratedTokens"),
    ),
    "arrival_s": (
        *("arrival_s", "arrival_time", "arrival_time_s", "arrived_at", "timestamp_s"),
        *("timestamp_ms", "arrival_ms", "arrival_time_ms", "TIMESTAMP", "Timestamp", "timestamp"),
    ),
    "reasoning_tokens": ("reasoning_tokens",),
    "scores": ("score", "scores"),
    "request_id": ("request_id", "prompt_id"),
    "user_class": ("user_class",),
    "tbt_s": ("tbt_s",),
    "score_s": ("score_s",),
}
"""Our columns, and the names that public traces give them; the first one found is read. Numbers in
a column called timestamp are not read: some traces mean seconds, others milliseconds."""


def read_trace(
    path: str | PathLike[str], *, limit: int | None = None, scorer: PromptScorer | None = None
) -> Requests:
    """Return the requests of a CSV (also .gz), parquet or JSONL file with both token columns.

    Column names of common public traces are understood (`COLUMN_NAMES`). A trace without arrival
    times arrives at 0 s, which is logged. `limit` keeps the first rows, which is logged too. With
    a `scorer` the column `prompt` is scored, and its tokens are counted where there is no column of
    prompt tokens.

    Raises:
        DataError: no such file, another format, a missing column, an id that is there twice, or a
            value that cannot be.
        ScoringError: not one prompt could be scored.
    """
    path = Path(path)
    table = read_table(path)
    if table.empty:
        raise DataError("there are no requests; give at least one", path=path)
    if limit is not None and limit < len(table):
        num_there = f"{len(table):,}"
        log.info("the first %s of %s requests of %s are read", f"{limit:,}", num_there, path)
        table = table.iloc[:limit]
    if scorer is not None:
        table = _scored(table, scorer, path)
    names = _names_of(table, path)
    columns = {ours: table[name].to_numpy() for ours, name in names.items()}
    if "arrival_s" in names:
        columns["arrival_s"] = _in_seconds(names["arrival_s"], table[names["arrival_s"]], path)
    else:
        log.info(
            "no arrival times among the columns %s: all requests arrive at 0 s where no rate is "
            "given; times are read from arrival_s (seconds), timestamp_ms, or TIMESTAMP (wall "
            "clock)",
            ", ".join(map(str, table.columns)),
        )
    repeated = pd.Series(columns.get("request_id", [])).duplicated().to_numpy()
    if repeated.any() and names["request_id"] == "prompt_id":
        del columns["request_id"]  # several answers to one prompt are requests of their own
    elif repeated.any():
        row = int(repeated.argmax())
        raise DataError(
            f"request_id is {columns['request_id'][row]}; it must be another one for each request",
            path=path,
            row=row,
        )
    return make_requests(**columns, path=path)


def _names_of(table: pd.DataFrame, path: Path) -> dict[str, str]:
    """The names in `table` of those of our columns that it has."""
    has_unit = {name: str(name).lower() != "timestamp" for name in table}
    clear = [name for name, said in has_unit.items() if said or not is_numeric_dtype(table[name])]
    found = {
        ours: next(name for name in names if name in clear)
        for ours, names in COLUMN_NAMES.items()
        if set(names).intersection(clear)
    }
    for needed in ("prompt_tokens", "output_tokens"):
        if needed not in found:
            hint = ""
            if needed == "prompt_tokens" and "prompt" in table:
                hint = ", or add --scores bundle:PATH, whose tokenizer counts those of 'prompt'"
            raise DataError(f"no column {needed!r}; {_columns_there(table)}{hint}", path=path)
    return found


def _columns_there(table: pd.DataFrame) -> str:
    return f"there are {', '.join(map(str, table.columns))}; rename one"


def _scored(table: pd.DataFrame, scorer: PromptScorer, path: Path) -> pd.DataFrame:
    """Return the table with the scores of its prompts; how many have none is logged."""
    if "prompt" not in table:
        raise DataError(
            f"no column 'prompt' to score; {_columns_there(table)}, or use other --scores",
            path=path,
        )
    # A missing prompt is NaN in the table; to a scorer it is empty.
    prompts = [prompt if isinstance(prompt, str) else "" for prompt in table["prompt"]]
    log.info("scoring %d prompts", len(prompts))
    scored = scorer.score_prompts(prompts)
    num_unscored = int(np.isnan(scored.values).sum())
    if num_unscored == len(prompts):
        raise ScoringError(
            f"not one of the {len(prompts)} prompts of {path} could be scored; see to the ranker, "
            "or use other --scores"
        )
    if num_unscored:
        counts = num_unscored, len(prompts)
        log.warning("%d of %d prompts have no score and are ranked by the median", *counts)
    table = table.assign(score=scored.values)
    if not any(name in table for name in COLUMN_NAMES["prompt_tokens"]):
        log.info("prompt tokens are counted by the ranker's tokenizer")
        table = table.assign(prompt_tokens=scored.prompt_tokens)
    return table


def _in_seconds(name: str, column: pd.Series[Any], path: Path) -> NDArray[Any]:
    """Convert milliseconds, or wall-clock times since the first one, to seconds."""
    if not is_datetime64_any_dtype(column):
        with suppress(TypeError, ValueError):  # what is no number may be a time of day
            numbers = column.to_numpy(dtype=np.float64)
            return numbers / 1e3 if name.endswith("_ms") else numbers
    try:
        times = pd.to_datetime(column, format="ISO8601")
        return (times - times.min()).dt.total_seconds().to_numpy()
    except (TypeError, ValueError) as error:
        raise DataError(
            f"column {name!r} holds no times; use seconds, or wall-clock times such as "
            "2023-11-16 18:15:46",
            path=path,
        ) from error
