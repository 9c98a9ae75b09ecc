"""Requests of an experiment as columns, checked when they are made.

requests = make_requests(prompt_tokens=[12, 500], output_tokens=[40, 900])      # burst at 0 s
requests = make_requests(..., arrival_s=arrivals_s(1000, rate_per_s=6.45, seed=0))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, nan
from os import PathLike
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import DataError
from scheduler_adapters.views import are_quantiles

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _tokens(least: int) -> tuple[Callable[[Floats], Any], str]:
    right = f"a whole number, {least} to 2**31"
    return lambda c: (c >= least) & (c <= 2**31) & (c == np.floor(c)), right


def _from(least: int, unit: str, missing: str) -> tuple[Callable[[Floats], Any], str]:
    return lambda c: ~(c < least), f"{unit} >= {least}, or NaN for {missing}"


class Column(NamedTuple):
    """Properties of one field of `Requests`."""

    are_right: Callable[[Floats], Any] = np.isfinite
    """Check of its numbers."""
    right: str = ""
    """The right numbers in words."""
    otherwise: Any = None
    """Value of requests that give none; None: each request gives one."""
    names: tuple[str, ...] = ()
    """Its other names in a table."""
    is_hidden: bool = False
    """Policies do not see it."""
    is_rare: bool = False
    """It is left out of a written table in which no request gives it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Requests:
    """N requests in order of arrival; each field is a column of N values.

    This is the one list of a request's fields: `make_requests`, the views of policies, the columns
    of a written timeline and the annotations for an engine derive from it.
    """

    request_id: Annotated[NDArray[np.str_], Column()]
    arrival_s: Annotated[
        Floats, Column(lambda c: (c >= 0) & np.isfinite(c), "seconds >= 0", otherwise=0.0)
    ]
    prompt_tokens: Annotated[Ints, Column(*_tokens(1))]
    output_tokens: Annotated[Ints, Column(*_tokens(1), is_hidden=True)]
    """Tokens of the response."""
    reasoning_tokens: Annotated[Ints, Column(*_tokens(0), otherwise=0, is_hidden=True)]
    """Output tokens before the end of thinking."""
    score: Annotated[
        Floats,
        Column(lambda c: ~np.isinf(c), "a finite number, or NaN for none", nan, ("scores",)),
    ]
    """Predicted length, higher = longer, on any scale."""
    user_class: Annotated[NDArray[np.str_], Column(otherwise="")]
    tbt_s: Annotated[
        Floats,
        Column(lambda c: ~(c <= 0) & ~np.isinf(c), "seconds above 0, or NaN for none", nan),
    ]
    """Target time between tokens."""
    score_delay_s: Annotated[
        Floats,
        Column(*_from(0, "seconds", "never"), 0.0, is_hidden=True, is_rare=True),
    ]
    """Time from the arrival to the score; 0: the request has its score, inf: never."""
    min_tokens: Annotated[Floats, Column(*_from(0, "tokens", "no limit"), 0.0, is_rare=True)]
    max_tokens: Annotated[Floats, Column(*_from(1, "tokens", "no limit"), inf, is_rare=True)]
    """Least and most output tokens that the request itself allows; inf: no limit."""
    client: Annotated[NDArray[np.str_], Column(otherwise="", is_rare=True)]
    """Name of the sender, for shares between clients."""
    cached_tokens: Annotated[Ints, Column(*_tokens(0), otherwise=0, is_rare=True)]
    """Prompt tokens that the prefix cache of any instance holds, whenever the request starts."""
    quantiles: Annotated[NDArray[np.object_], Column(otherwise=(), is_rare=True)]
    """Predicted length of each, as `RequestView.quantiles`."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def clients(self) -> frozenset[str]:
        """Names of the senders."""
        return frozenset(self.client.tolist()) - {""}

    @property
    def has_limits(self) -> bool:
        """Return whether a request limits its output."""
        return bool(self.min_tokens.any() or np.isfinite(self.max_tokens).any())

    def take(self, rows: NDArray[Any] | slice) -> Requests:
        """Return the requests at `rows` (indices, a mask or a slice), in that order."""
        return Requests(**{name: getattr(self, name)[rows] for name in COLUMNS})

    def with_scores(self, score: ArrayLike) -> Requests:
        """Return the requests with other scores, (N,) or one for all; NaN means none."""
        return replace(self, score=_Columns(len(self), None).made("score", score))

    def gives(self, name: str) -> bool:
        """Return whether a column is in a written table: a rare one only if a request gives it."""
        column = COLUMNS[name]
        return not column.is_rare or any(
            value != column.otherwise for value in getattr(self, name).tolist()
        )

    def seen_columns(self) -> dict[str, list[Any]]:
        """Return the fields that policies see, as lists of values in the form of views."""
        columns = {name: getattr(self, name).tolist() for name in COLUMNS.keys() - HIDDEN}
        for name in _MAY_LACK:
            columns[name] = [None if value != value else value for value in columns[name]]
        limits = zip(columns.pop("min_tokens"), columns.pop("max_tokens"), strict=True)
        return columns | {"limits": list(limits)}


_HINTS: Final = get_type_hints(Requests, globals(), include_extras=True)
COLUMNS: Final[Mapping[str, Column]] = {name: one.__metadata__[0] for name, one in _HINTS.items()}
"""The fields of a request, by name."""
HIDDEN: Final = frozenset(name for name, column in COLUMNS.items() if column.is_hidden)
"""Fields that policies do not see."""
_MAY_LACK: Final = tuple(name for name, column in COLUMNS.items() if column.otherwise is nan)


def make_requests(
    *,
    score_s: ArrayLike | None = None,
    path: str | PathLike[str] | None = None,
    **columns: ArrayLike,
) -> Requests:
    """Return checked columns in order of arrival (stable; sorting is logged).

    Args:
        score_s: time of each score, in place of its delay. A time before the arrival counts as the
            arrival; NaN and infinity mean never.
        path: file of the columns, for errors.
        columns: fields of `Requests`, each (N,) or one value for all; prompt_tokens and
            output_tokens are needed. Without names the requests have the numbers from 0. Cached
            tokens are cut to the prompt before its last token, which is computed in any case.

    Raises:
        DataError: a column lacks values, or a length, time or score is impossible.
    """
    given = {_FIELD_OF[name]: values for name, values in columns.items()}
    check = _Columns(len(np.atleast_1d(np.asarray(given["output_tokens"]))), path)
    given.setdefault("request_id", np.arange(check.count))
    absent = COLUMNS.keys() - given.keys()
    given |= {name: COLUMNS[name].otherwise for name in absent}
    made = {name: check.made(name, given[name]) for name in COLUMNS}
    if score_s is not None:
        known_s = check.numbers("score_delay_s", score_s, name="score_s")
        made["score_delay_s"] = np.maximum(known_s - made["arrival_s"], 0.0)
    for name, missing in (("score_delay_s", inf), ("min_tokens", 0.0), ("max_tokens", inf)):
        made[name] = np.nan_to_num(made[name], nan=missing, posinf=inf)
    requests = Requests(**made)
    _keep_to_bounds(requests, check)
    if (np.diff(requests.arrival_s) < 0).any():
        log.warning("requests are not in order of arrival: sorted by arrival_s")
        requests = requests.take(np.argsort(requests.arrival_s, kind="stable"))
    return requests


_FIELD_OF: Final = {
    spelling: name for name, column in COLUMNS.items() for spelling in (name, *column.names)
}


def _keep_to_bounds(requests: Requests, check: _Columns) -> None:
    """Drop limits that the output breaks, and cut the cached tokens before a prompt's last one."""
    for name, whole in (("reasoning_tokens", "output_tokens"), ("cached_tokens", "prompt_tokens")):
        part, most = getattr(requests, name), getattr(requests, whole)
        check.refuse(part > most, name, part, f"no more than {whole}")
    cached = requests.cached_tokens
    np.minimum(cached, requests.prompt_tokens - 1, out=cached)
    least, most, output = requests.min_tokens, requests.max_tokens, requests.output_tokens
    if num_beyond := int(((output < least) | (output > most)).sum()):
        log.warning("limits of %d requests are left out: their output keeps to none", num_beyond)
    least[output < least], most[output > most] = 0.0, inf


class _Columns:
    """Checks of columns of `count` values; an error names the row and the file."""

    def __init__(self, count: int, path: str | PathLike[str] | None) -> None:
        self.count, self.path = count, path
        if count == 0:
            raise DataError("there are no requests; give at least one", path=path)

    def made(self, name: str, values: ArrayLike) -> NDArray[Any]:
        """Return the checked column of a field of `Requests`."""
        kind = _HINTS[name].__origin__
        if kind not in (Floats, Ints):
            return self.quantiles(values) if name == "quantiles" else self.names(name, values)
        return self.numbers(name, values).astype(np.int64 if kind == Ints else np.float64)

    def numbers(self, field: str, values: ArrayLike, *, name: str = "") -> Floats:
        """Return numbers with the check of a field; `name` is theirs in errors."""
        name, kind = name or field, COLUMNS[field]
        try:
            column = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            text = f"{name} holds no numbers ({error}); give a number per request"
            raise DataError(text, path=self.path) from error
        column = self._shaped(name, column)
        self.refuse(~kind.are_right(column), name, column, kind.right)
        return column

    def names(self, name: str, values: ArrayLike) -> NDArray[np.str_]:
        import pandas as pd  # late: a scheduler that only calls a scoring service has no pandas

        column = np.asarray(values)
        return self._shaped(name, np.where(pd.isna(column), "", column.astype(np.str_)))

    def quantiles(self, values: Any) -> NDArray[np.object_]:
        column = no_quantiles(self.count)
        for row, pairs in enumerate(values):
            if pairs is None or pairs is nan:  # an empty cell of a table
                continue
            try:
                column[row] = tuple((float(fraction), float(tokens)) for fraction, tokens in pairs)
            except (TypeError, ValueError):
                column[row] = None
            if column[row] is None or not are_quantiles(column[row]):
                text = f"quantiles is {pairs}; use pairs (fraction, tokens), both ascending"
                raise DataError(text, path=self.path, row=row)
        return column

    def refuse(self, bad: NDArray[np.bool_], name: str, column: NDArray[Any], wanted: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            text = f"{name} is {column[row]}; it must be {wanted}"
            raise DataError(text, path=self.path, row=row)

    def _shaped(self, name: str, column: NDArray[Any]) -> NDArray[Any]:
        if column.ndim == 0:
            return np.full(self.count, column)
        if column.shape != (self.count,):
            text = f"{name} has shape {column.shape}; output_tokens has {self.count} values"
            raise DataError(text, path=self.path)
        return column


def no_quantiles(count: int) -> NDArray[np.object_]:
    """Return (count,) empty predictions."""
    empty = np.empty(count, dtype=object)
    empty[:] = [()] * count
    return empty
