"""Hints: score, length quantiles, class and TBT target that a request carries to the scheduler.

Through vLLM's OpenAI server in the body, `"vllm_xargs": {"lengthwise_score": 217.5}`; offline in
`SamplingParams(extra_args={"lengthwise_score": 217.5})`. Clients send anything, so nothing here
raises: an unusable value counts as absent, and the counters say how often.

| key | value |
|---|---|
| lengthwise_score | predicted length: a finite number, higher = longer, any scale |
| lengthwise_quantiles | predicted length: fraction, tokens, ...: [0.5, 210, 0.9, 640] |
| lengthwise_class | name of the user's class, for policies that know classes |
| lengthwise_tbt_s | target time between tokens, seconds > 0 |
| lengthwise_ticket | set by the middleware, which may send the score later: 32 hex digits |

Quantiles are one flat list because vLLM takes no objects here: fractions in (0, 1), rising, each
before its tokens, which do not fall; 100 pairs at most. A class has 100 characters at most.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scheduler_adapters.workload.requests import Requests

SCORE: Final = "lengthwise_score"
QUANTILES: Final = "lengthwise_quantiles"
USER_CLASS: Final = "lengthwise_class"
TBT_S: Final = "lengthwise_tbt_s"
TICKET: Final = "lengthwise_ticket"
CLIENT_HINTS: Final = frozenset({SCORE, QUANTILES, USER_CLASS, TBT_S})
"""Those that a client may send itself, where it may."""

_MOST: Final = 100
"""Pairs of quantiles, and characters of a class: clients must not make ranks and metrics slow."""

logger = logging.getLogger(__name__)


def hints_of(requests: Requests, row: int) -> dict[str, Any]:
    """Return the hints of one request of a workload; a missing score or target is left out, and of
    a score that comes later there is the ticket."""
    hints: dict[str, Any] = {USER_CLASS: str(requests.user_class[row])}
    for name, value in ((SCORE, requests.score[row]), (TBT_S, requests.tbt_s[row])):
        if not isnan(value):
            hints[name] = float(value)
    if requests.score_delay_s[row] > 0 and hints.pop(SCORE, None) is not None:
        hints[TICKET] = f"{row:032x}"
    return hints


@dataclass(slots=True)
class HintCounts:
    """Counts of requests with and without a usable score. `unscored` includes `invalid`."""

    scored: int = 0
    unscored: int = 0
    invalid: int = 0
    """Requests with a hint that cannot be used, whatever else they carry."""
    late: int = 0
    """Of the unscored: those ranked by a score that came while they waited."""

    def read(self, carried: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the usable hints of a request's extra arguments, as fields of a `RequestView`."""
        found, unusable = read_hints(carried)
        if "score" in found:
            self.scored += 1
        else:
            self.unscored += 1
        if unusable:
            self.invalid += 1
            logger.debug("unusable %s; the request is scheduled without", unusable)
        return found


def read_hints(carried: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Return the usable hints, as fields of a `RequestView`, and the keys of those that are not."""
    found: dict[str, Any] = {}
    unusable = []
    for key, value in carried.items() if carried else ():
        if key in _HINTS and value is not None:
            name, usable = _HINTS[key]
            if (found_value := usable(value)) is None:
                unusable.append(key)
            else:
                found[name] = found_value
    return found, unusable


def ticket_of(carried: Mapping[str, Any] | None) -> str | None:
    """Return the ticket that a request or a late score carries, if it is one."""
    ticket = carried.get(TICKET) if carried else None
    return ticket if isinstance(ticket, str) and _is_ticket(ticket) else None


_is_ticket = re.compile(r"[0-9a-f]{32}").fullmatch


def score_hints(score: float, quantiles: Mapping[float, float]) -> dict[str, Any]:
    """Return the hints of a score and of its quantiles, fraction -> tokens, where it has any."""
    flat = [number for pair in sorted(quantiles.items()) for number in pair]
    return {SCORE: score} | ({QUANTILES: flat} if flat else {})


def _quantiles(value: object) -> tuple[tuple[float, float], ...] | None:
    if not isinstance(value, list | tuple) or len(value) > 2 * _MOST:
        return None
    numbers = [_finite(item) for item in value]
    known = [number for number in numbers if number is not None]
    if len(known) < max(2, len(numbers)) or len(known) % 2:
        return None
    fractions, tokens = known[::2], known[1::2]
    rises = all(a < b for a, b in pairwise([0.0, *fractions, 1.0]))
    falls = any(a > b for a, b in pairwise([0.0, *tokens]))
    return tuple(zip(fractions, tokens, strict=True)) if rises and not falls else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= _MOST else None


def _positive(value: object) -> float | None:
    number = _finite(value)
    return number if number is not None and number > 0 else None


def _finite(value: object) -> float | None:
    """`value` as a float if it is a finite number; True and "3" are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


_HINTS: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = {
    SCORE: ("score", _finite),
    USER_CLASS: ("user_class", _text),
    TBT_S: ("tbt_s", _positive),
    QUANTILES: ("quantiles", _quantiles),
}
"""Key -> field of `RequestView`, and what makes a value usable, or None of it."""
