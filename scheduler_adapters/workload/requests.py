"""Requests of an experiment as columns, checked when they are made.

requests = make_requests(prompt_tokens=[12, 500], output_tokens=[40, 900])      # burst at 0 s
requests = make_requests(..., arrival_s=poisson_arrivals_s(1000, rate_per_s=6.45, seed=0))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import DataError

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Requests:
    """N requests in order of arrival; each field is a column of N values.

    `make_requests` makes and checks them. A missing score or TBT target is NaN.
    """

    request_id: NDArray[np.str_]
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    """Tokens of the response, hidden from policies."""
    reasoning_tokens: Ints
    """Output tokens before the end of thinking."""
    score: Floats
    """Predicted length, higher = longer, on any scale."""
    user_class: NDArray[np.str_]
    tbt_s: Floats
    """Target time between tokens."""
    score_delay_s: Floats
    """Time from the arrival to the score; 0: the request has its score, inf: never."""
    min_tokens: Floats
    max_tokens: Floats
    """Least and most output tokens that the request itself allows; inf: no limit."""
    client: NDArray[np.str_]
    """Name of the sender, for shares between clients."""
    cached_tokens: Ints
    """Prompt tokens that the prefix cache of any instance holds, whenever the request starts."""
    quantiles: NDArray[np.object_]
    """Predicted length of each, as `RequestView.quantiles`."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def has_limits(self) -> bool:
        """Return whether a request limits its output."""
        return bool(self.min_tokens.any() or np.isfinite(self.max_tokens).any())

    def take(self, rows: NDArray[Any]) -> Requests:
        """Return the requests at `rows` (indices or a mask), in that order."""
        return Requests(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def with_scores(self, score: ArrayLike) -> Requests:
        """Return the requests with other scores, (N,) or one for all; NaN means none."""
        return replace(self, score=_Columns(len(self), None).numbers("score", score))


def make_requests(
    *,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    arrival_s: ArrayLike = 0.0,
    reasoning_tokens: ArrayLike = 0,
    scores: ArrayLike = np.nan,
    request_id: ArrayLike | None = None,
    user_class: ArrayLike = "",
    tbt_s: ArrayLike = np.nan,
    score_s: ArrayLike = 0.0,
    min_tokens: ArrayLike = 0.0,
    max_tokens: ArrayLike = np.inf,
    client: ArrayLike = "",
    cached_tokens: ArrayLike = 0,
    path: str | PathLike[str] | None = None,
) -> Requests:
    """Return checked columns in order of arrival (stable; sorting is logged).

    Args:
        request_id: names; without them the numbers from 0.
        score_s: time of each score. A time before the arrival counts as the arrival; NaN and
            infinity mean never.
        min_tokens, max_tokens: limits of the output in the request; NaN: none.
        cached_tokens: at most the prompt; its last token is computed in any case.
        path: file of the columns, for errors.

    Raises:
        DataError: a column lacks values, or a length, time or score is impossible.
    """
    count = len(np.atleast_1d(np.asarray(output_tokens)))
    check = _Columns(count, path)
    ids = np.arange(count) if request_id is None else request_id
    requests = Requests(
        request_id=check.names("request_id", ids),
        arrival_s=check.numbers("arrival_s", arrival_s),
        prompt_tokens=check.numbers("prompt_tokens", prompt_tokens).astype(np.int64),
        output_tokens=check.numbers("output_tokens", output_tokens).astype(np.int64),
        reasoning_tokens=check.numbers("reasoning_tokens", reasoning_tokens).astype(np.int64),
        score=check.numbers("score", scores),
        user_class=check.names("user_class", user_class),
        tbt_s=check.numbers("tbt_s", tbt_s),
        score_delay_s=check.numbers("score_s", score_s),
        min_tokens=np.nan_to_num(check.numbers("min_tokens", min_tokens)),
        max_tokens=np.nan_to_num(
            check.numbers("max_tokens", max_tokens), nan=np.inf, posinf=np.inf
        ),
        client=check.names("client", client),
        cached_tokens=check.numbers("cached_tokens", cached_tokens).astype(np.int64),
        quantiles=no_quantiles(count),
    )
    delay_s = np.maximum(requests.score_delay_s - requests.arrival_s, 0.0)
    requests.score_delay_s[:] = np.nan_to_num(delay_s, nan=np.inf, posinf=np.inf)
    _keep_to_bounds(requests, check)
    if (np.diff(requests.arrival_s) < 0).any():
        log.warning("requests are not in order of arrival: sorted by arrival_s")
        requests = requests.take(np.argsort(requests.arrival_s, kind="stable"))
    return requests


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
    least[output < least], most[output > most] = 0.0, np.inf


def no_quantiles(count: int) -> NDArray[np.object_]:
    """Return (count,) empty predictions."""
    empty = np.empty(count, dtype=object)
    empty[:] = [()] * count
    return empty


def _are_tokens(least: int) -> tuple[Callable[[Floats], Any], str]:
    right = f"a whole number, {least} to 2**31"
    return lambda c: (c >= least) & (c <= 2**31) & (c == np.floor(c)), right


_RULES: Final[Mapping[str, tuple[Callable[[Floats], Any], str]]] = {
    "arrival_s": (lambda c: (c >= 0) & np.isfinite(c), "seconds >= 0"),
    "prompt_tokens": _are_tokens(1),
    "output_tokens": _are_tokens(1),
    "reasoning_tokens": _are_tokens(0),
    "cached_tokens": _are_tokens(0),
    "score": (lambda c: ~np.isinf(c), "a finite number, or NaN for none"),
    "tbt_s": (lambda c: np.isnan(c) | (c > 0) & np.isfinite(c), "seconds above 0, or NaN for none"),
    "min_tokens": (lambda c: ~(c < 0), "tokens >= 0, or NaN for no limit"),
    "max_tokens": (lambda c: ~(c < 1), "tokens >= 1, or NaN for no limit"),
    "score_s": (lambda c: ~(c < 0), "seconds >= 0, or NaN for never"),
}
"""Column -> check of its numbers, and the right values in words."""


class _Columns:
    """Checks of columns of `count` values; an error names the row and the file."""

    def __init__(self, count: int, path: str | PathLike[str] | None) -> None:
        self.count, self.path = count, path
        if count == 0:
            raise DataError("there are no requests; give at least one", path=path)

    def numbers(self, name: str, values: ArrayLike) -> Floats:
        are_right, right = _RULES[name]
        try:
            column = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            text = f"{name} holds no numbers ({error}); give a number per request"
            raise DataError(text, path=self.path) from error
        column = self._shaped(name, column)
        self.refuse(~are_right(column), name, column, right)
        return column

    def names(self, name: str, values: ArrayLike) -> NDArray[np.str_]:
        import pandas as pd  # late: a scheduler that only calls a scoring service has no pandas

        column = np.asarray(values)
        return self._shaped(name, np.where(pd.isna(column), "", column.astype(np.str_)))

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
