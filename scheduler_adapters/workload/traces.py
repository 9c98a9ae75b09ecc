"""Requests of trace files and logs: columns under our names, times in seconds.

requests = read_trace("trace.parquet")
requests = read_trace("gateway.jsonl", columns={"output_tokens": "response.usage.total_tokens"})
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype

from lengthwise.errors import DataError, ScoringError
from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.reading import (
    ARRIVAL,
    LENGTH,
    PROMPT,
    PROMPT_TOKENS,
    OnBadRows,
    log_left_out,
    read_table,
    require_columns,
)
from lengthwise.tables.values import count_of
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.score_sources import PromptScorer

_SINCE_1970: Final = 1e9
"""Times above are seconds since 1970, not since the start of a trace."""

log = logging.getLogger(__name__)

COLUMN_NAMES: Final = {
    column: names.split()
    for column, names in {
        "prompt_tokens": "prompt_tokens num_prompt_tokens num_prefill_tokens input_tokens "
        "input_length input_toks ContextTokens",
        "output_tokens": "output_tokens num_output_tokens num_decode_tokens output_length "
        "output_toks GeneratedTokens",
        "arrival_s": "arrival_s arrival_time arrival_time_s arrived_at timestamp_s timestamp_ms "
        "arrival_ms arrival_time_ms TIMESTAMP Timestamp timestamp",
        "scores": "score scores",
        "request_id": "request_id prompt_id",
        **{name: name for name in ("reasoning_tokens", "user_class", "tbt_s", "score_s")},
    }.items()
}
"""Our columns, and their names in public traces; the first present name is read. Numbers in a
column called timestamp are not read: their unit differs between traces."""


def read_trace(
    path: str | PathLike[str],
    *,
    limit: int | None = None,
    scorer: PromptScorer | None = None,
    columns: Mapping[str, str] | None = None,
    on_bad_rows: OnBadRows = "error",
) -> Requests:
    """Return the requests of a table with both token columns, or of a log.

    Args:
        limit: number of rows to keep, from the first; a cut is logged.
        scorer: ranker of the column `prompt`; it also counts missing prompt tokens.
        columns: our column -> its name or path in the trace, beside `COLUMN_NAMES`.
        on_bad_rows: effect of a row without tokens or time.

    Raises:
        DataError: an absent file, another format, a missing column, a repeated id, or an
            impossible value.
        ScoringError: no prompt has a score.
    """
    path = Path(path)
    given = dict(columns or {})
    table = read_table(path, columns=list(given.values()), on_bad_rows=on_bad_rows)
    if limit is not None and limit < len(table):
        log.info(
            "the first %s of %s requests of %s are read", f"{limit:,}", f"{len(table):,}", path
        )
        table = table.iloc[:limit]
    if scorer is not None:
        table = _scored(table, scorer, path, given.get("prompt", "prompt"))
    names = _names_of(table, path, given)
    if on_bad_rows == "skip":
        table = _without_bad_rows(table, names, path)
    values = {ours: table[name].to_numpy() for ours, name in names.items()}
    if "arrival_s" in names:
        values["arrival_s"] = _in_seconds(names["arrival_s"], table[names["arrival_s"]], path)
    else:
        log.info(
            "no arrival times among the columns %s: all requests arrive at 0 s without a rate; "
            "times are read from arrival_s (seconds), timestamp_ms, or TIMESTAMP (wall clock)",
            ", ".join(map(str, table.columns)),
        )
    repeated = pd.Series(values.get("request_id", [])).duplicated().to_numpy()
    if repeated.any() and names["request_id"] == "prompt_id":
        del values["request_id"]  # several answers to one prompt are requests of their own
    elif repeated.any():
        row = int(repeated.argmax())
        text = f"request_id is {values['request_id'][row]}; it must be another one for each request"
        raise DataError(text, path=path, row=row)
    return make_requests(**values, path=path)


def _names_of(table: pd.DataFrame, path: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the names in `table` of our columns; `given` names must be present."""
    has_unit = {name: str(name).lower() != "timestamp" for name in table}
    clear = [name for name, said in has_unit.items() if said or not is_numeric_dtype(table[name])]
    found = {
        ours: next(name for name in names if name in clear)
        for ours, names in COLUMN_NAMES.items()
        if set(names).intersection(clear)
    }
    found |= {ours: name for ours, name in given.items() if ours in COLUMN_NAMES}
    needed = [found.get(name, name) for name in ("prompt_tokens", "output_tokens")]
    options = dict(zip(needed, (PROMPT_TOKENS, LENGTH), strict=True))
    options[found.get("arrival_s", "")] = ARRIVAL
    has_prompts = given.get("prompt", "prompt") in table
    hint = ", or add --scores bundle:PATH, whose tokenizer counts prompt tokens" * has_prompts
    require_columns(table, [*needed, *found.values()], path, options, hint)
    return found


def _without_bad_rows(table: pd.DataFrame, names: Mapping[str, str], path: Path) -> pd.DataFrame:
    why = pd.Series("", index=table.index)
    if "arrival_s" in names:
        why[table[names["arrival_s"]].isna()] = f"{names['arrival_s']} is missing"
    for name in (names["output_tokens"], names["prompt_tokens"]):
        is_wrong = [not count_of(cell) for cell in table[name]]
        why[is_wrong] = f"{name} is no whole number of tokens >= 1"
    log_left_out(Counter(why[why != ""]), len(table), path)
    return table[why == ""]


def _scored(table: pd.DataFrame, scorer: PromptScorer, path: Path, column: str) -> pd.DataFrame:
    """Return the table with the scores of its prompts; missing scores are counted and logged."""
    require_columns(table, [column], path, {column: PROMPT})
    prompts = [prompt_of(prompt) or "" for prompt in table[column]]
    log.info("scoring %d prompts", len(prompts))
    scored = scorer.score_prompts(prompts)
    num_unscored = int(np.isnan(scored.values).sum())
    if num_unscored == len(prompts):
        advice = "check the ranker, or use other --scores"
        raise ScoringError(f"not one of the {len(prompts)} prompts of {path} has a score; {advice}")
    if num_unscored:
        text = "%d of %d prompts have no score and are ranked by the median"
        log.warning(text, num_unscored, len(prompts))
    table = table.assign(score=scored.values)
    if not any(name in table for name in COLUMN_NAMES["prompt_tokens"]):
        log.info("prompt tokens are counted by the ranker's tokenizer")
        table = table.assign(prompt_tokens=scored.prompt_tokens)
    return table


def _in_seconds(name: str, column: pd.Series[Any], path: Path) -> NDArray[Any]:
    if not is_datetime64_any_dtype(column):
        with suppress(TypeError, ValueError):  # a text may be a time of day
            numbers = column.to_numpy(dtype=np.float64)
            numbers = numbers / 1e3 if name.endswith("_ms") else numbers
            return numbers - numbers.min() if numbers.min() > _SINCE_1970 else numbers
    try:
        times = pd.to_datetime(column, format="ISO8601")
        return (times - times.min()).dt.total_seconds().to_numpy()
    except (TypeError, ValueError) as error:
        raise DataError(
            f"column {name!r} holds no times; use seconds, or wall-clock times such as "
            "2023-11-16 18:15:46",
            path=path,
        ) from error
