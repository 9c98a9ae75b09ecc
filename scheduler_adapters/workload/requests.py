"""Requests of an experiment as columns, and where they come from: arrays, traces, processes.

requests = make_requests(prompt_tokens=[12, 500], output_tokens=[40, 900])      # burst at 0 s
requests = make_requests(..., arrival_s=poisson_arrivals_s(1000, rate_per_s=6.45, seed=0))
requests = read_trace("trace.parquet")
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype

from scoring_service.errors import ConfigError, DataError, ScoringError

if TYPE_CHECKING:
    from scheduler_adapters.workload.scores import PromptScorer

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Requests:
    """N requests in order of arrival; every field is a column of N values.

    Made by `make_requests`, which checks them. A missing score or TBT target is NaN.
    """

    request_id: NDArray[np.str_]
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    """Tokens the response will have; only the engine knows, no policy does."""
    reasoning_tokens: Ints
    """How many of the output tokens come before the end of thinking."""
    score: Floats
    """Predicted length, higher = longer, on any scale."""
    user_class: NDArray[np.str_]
    tbt_s: Floats
    """Target time between tokens."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: NDArray[Any]) -> Requests:
        """The requests at `rows` (indices or a mask), in that order."""
        return Requests(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def with_scores(self, score: ArrayLike) -> Requests:
        """The same requests with other scores (N,); NaN means none."""
        return replace(self, score=_Columns(len(self), None).optional("score", score))


def make_requests(
    *,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    arrival_s: ArrayLike | None = None,
    reasoning_tokens: ArrayLike | None = None,
    scores: ArrayLike | None = None,
    request_id: ArrayLike | None = None,
    user_class: ArrayLike = "",
    tbt_s: ArrayLike | None = None,
    path: str | PathLike[str] | None = None,
) -> Requests:
    """Check columns of equal length and put them in order of arrival (stable; unsorted is logged).

    Left out: all arrive at 0 s, nothing is reasoning, no scores, ids 0, 1, ..., one class.
    A request without a class is of the class "".

    Raises:
        DataError: a column is missing values, or a length, time or score cannot be; names the row,
            and `path` where the columns came from a file.
    """
    count = len(np.atleast_1d(np.asarray(output_tokens)))
    check = _Columns(count, path)
    requests = Requests(
        request_id=check.names(
            "request_id", np.arange(count) if request_id is None else request_id
        ),
        arrival_s=check.seconds("arrival_s", 0.0 if arrival_s is None else arrival_s),
        prompt_tokens=check.tokens("prompt_tokens", prompt_tokens, least=1),
        output_tokens=check.tokens("output_tokens", output_tokens, least=1),
        reasoning_tokens=check.tokens(
            "reasoning_tokens", 0 if reasoning_tokens is None else reasoning_tokens, least=0
        ),
        score=check.optional("score", np.nan if scores is None else scores),
        user_class=check.names("user_class", user_class),
        tbt_s=check.optional("tbt_s", np.nan if tbt_s is None else tbt_s),
    )
    check.refuse(requests.tbt_s <= 0, "tbt_s", requests.tbt_s, "seconds above 0, or NaN for none")
    check.refuse(
        requests.reasoning_tokens > requests.output_tokens,
        "reasoning_tokens",
        requests.reasoning_tokens,
        "no more than output_tokens",
    )
    if (np.diff(requests.arrival_s) < 0).any():
        log.warning("requests are not in order of arrival: sorted by arrival_s")
        requests = requests.take(np.argsort(requests.arrival_s, kind="stable"))
    return requests


class _Columns:
    """Checks columns of `count` values; what is wrong is said with its row and its file."""

    def __init__(self, count: int, path: str | PathLike[str] | None) -> None:
        self.count, self.path = count, path
        if count == 0:
            raise DataError("there are no requests; give at least one", path=path)

    def tokens(self, name: str, values: ArrayLike, *, least: int) -> Ints:
        column = self._numbers(name, values)
        # NaN compares false, so it is refused together with what is too small.
        self.refuse(~(column >= least), name, column, f"a whole number >= {least}")
        self.refuse(column != np.floor(column), name, column, "a whole number")
        self.refuse(column > 2**31, name, column, "a whole number below 2**31")
        return column.astype(np.int64)

    def seconds(self, name: str, values: ArrayLike) -> Floats:
        column = self._numbers(name, values)
        self.refuse(~((column >= 0) & np.isfinite(column)), name, column, "seconds >= 0")
        return column

    def optional(self, name: str, values: ArrayLike) -> Floats:
        column = self._numbers(name, values)
        self.refuse(np.isinf(column), name, column, "a finite number, or NaN for none")
        return column

    def names(self, name: str, values: ArrayLike) -> NDArray[np.str_]:
        column = np.asarray(values)
        return self._shaped(name, np.where(pd.isna(column), "", column.astype(np.str_)))

    def refuse(self, bad: NDArray[np.bool_], name: str, column: NDArray[Any], wanted: str) -> None:
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise DataError(
                f"{name} is {column[row]}; it must be {wanted}", path=self.path, row=row
            )

    def _numbers(self, name: str, values: ArrayLike) -> Floats:
        try:
            return self._shaped(name, np.asarray(values, dtype=np.float64))
        except (TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{name} holds no numbers ({error}); give a number per request", path=self.path
            ) from error

    def _shaped(self, name: str, column: NDArray[Any]) -> NDArray[Any]:
        if column.ndim == 0:
            return np.full(self.count, column)
        if column.shape != (self.count,):
            raise DataError(
                f"{name} has shape {column.shape}; output_tokens has {self.count} values",
                path=self.path,
            )
        return column


ARRIVAL_STREAM = 1
LENGTH_STREAM = 2
ORDER_STREAM = 4
CLASS_STREAM = 5
"""Beside the seed: what is drawn with one seed must not share its random numbers."""


def poisson_arrivals_s(count: int, *, rate_per_s: float, seed: int) -> Floats:
    """Arrival times (count,) of a Poisson process with `rate_per_s`, in seconds.

    Raises:
        ConfigError: the rate is not a positive number.
    """
    if not 0 < rate_per_s < np.inf:
        raise ConfigError(f"rate_per_s is {rate_per_s}; use a number above 0, or a burst")
    gaps_s = np.random.default_rng((seed, ARRIVAL_STREAM)).exponential(1 / rate_per_s, count)
    return np.cumsum(gaps_s)


def gamma_arrivals_s(count: int, *, rate_per_s: float, cv: float, seed: int) -> Floats:
    """Arrival times (count,) with gamma-distributed gaps; `cv` above 1 makes bursts, 1 is Poisson.

    Raises:
        ConfigError: the rate or the coefficient of variation is not a positive number.
    """
    if not 0 < cv < np.inf:
        raise ConfigError(f"cv is {cv}; use a number above 0")
    if not 0 < rate_per_s < np.inf:
        raise ConfigError(f"rate_per_s is {rate_per_s}; use a number above 0, or a burst")
    shape = 1 / cv**2
    random = np.random.default_rng((seed, ARRIVAL_STREAM))
    return np.cumsum(random.gamma(shape, 1 / (rate_per_s * shape), count))


def shock_arrivals_s(count: int, *, rate_per_s: float, factor: float, seed: int) -> Floats:
    """Poisson arrival times (count,), `factor` times as fast in the middle fifth of the requests.

    Raises:
        ConfigError: the rate or the factor is not a positive number.
    """
    if not 0 < factor < np.inf:
        raise ConfigError(f"factor is {factor}; use a number above 0")
    steady_s = poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=seed)
    gaps_s = np.diff(steady_s, prepend=0.0)
    gaps_s[2 * count // 5 : 3 * count // 5] /= factor
    return np.cumsum(gaps_s)


COLUMN_NAMES = {
    "prompt_tokens": (
        "prompt_tokens",
        "num_prompt_tokens",
        "num_prefill_tokens",
        "input_tokens",
        "input_length",
        "input_toks",
        "ContextTokens",
    ),
    "output_tokens": (
        "output_tokens",
        "num_output_tokens",
        "num_decode_tokens",
        "output_length",
        "output_toks",
        "GeneratedTokens",
    ),
    "arrival_s": (
        "arrival_s",
        "arrival_time",
        "arrival_time_s",
        "arrived_at",
        "timestamp_s",
        "timestamp_ms",
        "arrival_ms",
        "arrival_time_ms",
        "TIMESTAMP",
        "Timestamp",
        "timestamp",
    ),
    "reasoning_tokens": ("reasoning_tokens",),
    "scores": ("score", "scores"),
    "request_id": ("request_id", "prompt_id"),
    "user_class": ("user_class",),
    "tbt_s": ("tbt_s",),
}
"""Our columns, and the names that public traces give them; the first one found is read. Numbers in
a column called timestamp are not: some traces mean seconds by them, others milliseconds."""


def read_trace(
    path: str | PathLike[str], *, limit: int | None = None, scorer: PromptScorer | None = None
) -> Requests:
    """Requests of a CSV (also .gz), parquet or JSONL file with at least the two token columns.

    Column names of common public traces are understood (`COLUMN_NAMES`). A trace without arrival
    times arrives at 0 s, which is logged. `limit` keeps the first rows, which is logged too. With
    a `scorer` the column `prompt` is scored, and its tokens are counted where there is no column of
    prompt tokens.

    Raises:
        DataError: no such file, another format, a missing column, an id that is there twice, or a
            value that cannot be.
        ScoringError: not one prompt could be scored.
    """
    table = read_table(Path(path))
    if table.empty:
        raise DataError("there are no requests; give at least one", path=path)
    if limit is not None and limit < len(table):
        log.info(
            "the first %s of %s requests of %s are read", f"{limit:,}", f"{len(table):,}", path
        )
        table = table.iloc[:limit]
    if scorer is not None:
        table = _scored(table, scorer, path)
    found = {
        ours: next((name for name in names if _is_clear(name, table)), None)
        for ours, names in COLUMN_NAMES.items()
    }
    for needed in ("prompt_tokens", "output_tokens"):
        if found[needed] is None:
            raise DataError(
                f"no column {needed!r}; {_columns_there(table)}{_counting(needed, table)}",
                path=path,
            )
    columns = {ours: table[name].to_numpy() for ours, name in found.items() if name is not None}
    if "arrival_s" in columns:
        columns["arrival_s"] = _in_seconds(str(found["arrival_s"]), table[found["arrival_s"]], path)
    else:
        log.info(
            "no arrival times among the columns %s: all requests arrive at 0 s where no rate is "
            "given; times are read from arrival_s (seconds), timestamp_ms, or TIMESTAMP (wall "
            "clock)",
            ", ".join(map(str, table.columns)),
        )
    if found["request_id"] == "prompt_id" and table["prompt_id"].duplicated().any():
        del columns["request_id"]  # several answers to one prompt are requests of their own
    elif found["request_id"] is not None:
        ids = table[found["request_id"]]
        _Columns(len(table), path).refuse(
            ids.duplicated().to_numpy(),
            "request_id",
            ids.to_numpy(),
            "another one for each request",
        )
    return make_requests(**columns, path=path)


def _is_clear(name: str, table: pd.DataFrame) -> bool:
    """Whether the column is there, and what it holds is known by its name."""
    if name not in table:
        return False
    return name.lower() != "timestamp" or not is_numeric_dtype(table[name])


def _counting(needed: str, table: pd.DataFrame) -> str:
    if needed != "prompt_tokens" or "prompt" not in table:
        return ""
    return ", or add --scores bundle:PATH, whose tokenizer counts those of 'prompt'"


def _columns_there(table: pd.DataFrame) -> str:
    return f"there are {', '.join(map(str, table.columns))}; rename one"


def _scored(table: pd.DataFrame, scorer: PromptScorer, path: str | PathLike[str]) -> pd.DataFrame:
    """The table with the scores of its prompts; those that have none are counted and said."""
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
        log.warning(
            "%d of %d prompts have no score and are served as FCFS would",
            num_unscored,
            len(prompts),
        )
    table = table.assign(score=scored.values)
    if not any(name in table for name in COLUMN_NAMES["prompt_tokens"]):
        log.info("prompt tokens are counted by the ranker's tokenizer")
        table = table.assign(prompt_tokens=scored.prompt_tokens)
    return table


def _in_seconds(name: str, column: pd.Series[Any], path: str | PathLike[str]) -> NDArray[Any]:
    """Seconds, of milliseconds or since the first of wall-clock times where need be."""
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


def read_table(path: Path) -> pd.DataFrame:
    """The file as a data frame, by its suffix."""
    name = path.name.removesuffix(".gz")
    try:
        if name.endswith(".parquet"):
            return pd.read_parquet(path)
        if name.endswith(".csv"):
            return pd.read_csv(path)
        if name.endswith((".jsonl", ".ndjson")):
            return pd.read_json(path, lines=True)
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot be read ({error}); give a table with a row per request", path=path
        ) from error
    raise DataError("has no known format; use .csv, .csv.gz, .parquet or .jsonl", path=path)
