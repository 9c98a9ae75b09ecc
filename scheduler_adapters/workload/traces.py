"""Requests of trace files and logs: columns under our names, times in seconds.

requests = read_trace("trace.parquet")
requests = read_trace("gateway.jsonl", TraceOptions(length_column=("usage.total_tokens",)))
"""

import logging
from collections.abc import Callable

import numpy as np
import pandas as pd

from lengthwise.errors import ScoringError
from lengthwise.tables.columns import Log
from lengthwise.tables.files import Paths
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log
from scheduler_adapters.workload.requests import COLUMNS, Requests, make_requests
from scheduler_adapters.workload.score_sources import PromptScorer

log = logging.getLogger(__name__)

_COUNTED = ("prompt_tokens", "output_tokens", "arrival_s", "reasoning_tokens")
"""Columns of every log."""
_EXTRAS = {
    "score_s": ("score_s",),
    **{
        name: (name, *column.names)
        for name, column in COLUMNS.items()
        if name not in (*_COUNTED, "quantiles")
    },
}
"""Further columns of a plain table."""


def read_trace(
    names: Paths,
    options: TraceOptions | None = None,
    *,
    limit: int | None = None,
    scorer: PromptScorer | None = None,
    has_times: bool = True,
    seen: Callable[[Log], object] | None = None,
) -> Requests:
    """Return the requests of a table with both token columns, or of a log.

    Args:
        limit: number of rows to keep, from the first; a cut is logged.
        scorer: ranker of the column `prompt`; it also counts missing prompt tokens.
        has_times: False if arrivals are drawn, so that those of the trace need no unit.
        seen: called with all that was read.

    Raises:
        DataError: `read_log` refuses the files, or a value is impossible.
        ScoringError: no prompt has a score.
    """
    needs = ["prompt_tokens"] * (scorer is None) + ["output_tokens"] + ["arrival_s"] * has_times
    wants = [] if scorer is None else ["prompt"]
    found = read_log(names, options, needs=needs, wants=wants, extras=_EXTRAS)
    table, path = found.frame, found.files[0]
    if seen is not None:
        seen(found)
    if limit is not None and limit < len(table):
        log.info(
            "the first %s of %s requests of %s are read", f"{limit:,}", f"{len(table):,}", path
        )
        table = table.iloc[:limit]
    if scorer is not None:
        table = _scored(table, scorer, path)
    if "arrival_s" not in table and has_times:
        log.info("%s has no arrival times: all requests arrive at 0 s without a rate", path)
    ours = {name: table[name].to_numpy() for name in (*_COUNTED, *_EXTRAS) if name in table}
    return make_requests(path=path, **ours)


def _scored(table: pd.DataFrame, scorer: PromptScorer, path: str) -> pd.DataFrame:
    """Return the table with the scores of its prompts; missing scores are counted and logged."""
    prompts = table["prompt"].fillna("").tolist()
    log.info("scoring %d prompts", len(prompts))
    scored = scorer.score_prompts(prompts)
    if (num_unscored := int(np.isnan(scored.values).sum())) == len(prompts):
        advice = "check the ranker, or use other --scores"
        raise ScoringError(f"not one of the {len(prompts)} prompts of {path} has a score; {advice}")
    if num_unscored:
        text = "%d of %d prompts have no score and are ranked by the median"
        log.warning(text, num_unscored, len(prompts))
    known = table.get("prompt_tokens", pd.Series(np.nan, table.index))
    if known.isna().any():
        log.info("missing prompt tokens are counted by the ranker's tokenizer")
    counted = known.fillna(pd.Series(scored.prompt_tokens, table.index))
    return table.assign(score=scored.values, prompt_tokens=counted)
