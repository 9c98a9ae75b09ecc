"""Annotations of a request for the scheduler: score, length quantiles, class and TBT target.

Option and metric names call them hints. vLLM's OpenAI server takes them in the body,
`"vllm_xargs": {"lengthwise_score": 217.5}`; the offline API in
`SamplingParams(extra_args={"lengthwise_score": 217.5})`. An unusable value is counted: absent.

| key | value |
|---|---|
| lengthwise_score | predicted length: a finite number, higher = longer, any scale |
| lengthwise_quantiles | predicted length: fraction, tokens, ...: [0.5, 210, 0.9, 640] |
| lengthwise_class | name of the user's class, for policies with classes |
| lengthwise_tbt_s | target time between tokens, seconds > 0 |
| lengthwise_limits | set by experiments: least and most tokens of output that the policy sees |
| lengthwise_client | set by the middleware: name of the sender, for shares between clients |
| lengthwise_request_key | set by the middleware, which may send the score later: 32 hex digits |

Requests that vLLM makes itself, as for beam search, carry class and client in their id.

Quantiles are one flat list because vLLM takes no objects here. Fractions in (0, 1) rise, tokens do
not fall; a list has 100 pairs at most. A class has 100 characters at most.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from scheduler_adapters.views import Quantiles, are_quantiles

if TYPE_CHECKING:
    from scheduler_adapters.workload.requests import Requests

HINT_START: Final = "lengthwise_"
SCORE: Final = "lengthwise_score"
QUANTILES: Final = "lengthwise_quantiles"
USER_CLASS: Final = "lengthwise_class"
TBT_S: Final = "lengthwise_tbt_s"
LIMITS: Final = "lengthwise_limits"
CLIENT: Final = "lengthwise_client"
REQUEST_KEY: Final = "lengthwise_request_key"
FROM_CLIENTS: Final = frozenset({SCORE, QUANTILES, USER_CLASS, TBT_S})
"""Annotations that a permitted client may send itself."""
# Clients must not make ranks and metrics slow.
_MAX_LENGTH: Final = 100

logger = logging.getLogger(__name__)


def annotations_of(requests: Requests, row: int) -> dict[str, Any]:
    """Return the annotations of one request of a workload.

    What the request does not give is left out. A score that arrives later is replaced by its key.
    """
    columns = requests.take(slice(row, row + 1)).seen_columns()
    given = {key: columns[name][0] for key, (name, _) in _FIELDS.items()}
    found = {key: value for key, value in given.items() if value not in ("", None, ())}
    if QUANTILES in found:
        found[QUANTILES] = [number for pair in found[QUANTILES] for number in pair]
    if requests.score_delay_s[row] > 0 and found.pop(SCORE, None) is not None:
        found[REQUEST_KEY] = f"{row:032x}"
    return found


@dataclass(slots=True)
class AnnotationCounts:
    """Counts of an engine's requests: `scored` and `unscored` of those that have started."""

    scored: int = 0
    """Started by a score of their own, wherever it was made."""
    unscored: int = 0
    """Started without one."""
    invalid: int = 0
    """Requests with an unusable annotation, whatever else they carry."""
    late: int = 0
    """Moved by a score that arrived while they were ranked without one."""
    at_once: int = 0
    """Of the unscored: started at once, as seats and tokens were free for all."""
    undecodable: int = 0
    """Prompts without text that the engine's own ranker could read: embeddings, images only."""
    cut: int = 0
    """Prompts that it has read in part: ranked just before the highest score."""
    failed: int = 0
    """Prompts at which the engine's own ranker failed."""
    full: int = 0
    """Prompts beyond the most that may wait for the engine's own ranker."""

    def read(self, carried: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a request's usable annotations as fields of a `RequestView`."""
        found, unusable = read_annotations(carried)
        if unusable:
            self.invalid += 1
            logger.debug("unusable %s; the request is scheduled without", unusable)
        return found

    def count(self, reason: str) -> None:
        """Count a request whose score the engine's own ranker could not make."""
        setattr(self, reason, getattr(self, reason) + 1)


def read_annotations(carried: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Return usable annotations as fields of a `RequestView`, and the keys of unusable ones."""
    found: dict[str, Any] = {}
    unusable = []
    for key, value in carried.items() if carried else ():
        if key in _FIELDS and value is not None:
            name, usable = _FIELDS[key]
            if (found_value := usable(value)) is None:
                unusable.append(key)
            else:
                found[name] = found_value
    return found, unusable


def request_key(carried: Mapping[str, Any] | None) -> str | None:
    """Return the valid request key of a request or a late score, if any."""
    key = carried.get(REQUEST_KEY) if carried else None
    return key if isinstance(key, str) and _is_key(key) else None


_is_key = re.compile(r"[0-9a-f]{32}").fullmatch


def id_mark(client: str, user_class: str | None) -> str:
    """Return the end of a request's id that `annotations_of_id` reads, also amid a longer id."""
    return f"-lengthwise_{client}_{(user_class or '').encode().hex()}_"


def annotations_of_id(request_id: str) -> dict[str, Any]:
    """Return class and client by the last mark in an id, if there is one."""
    return {
        key: value.decode(errors="replace")
        for client, user_class in _MARK.findall(request_id)[-1:]
        for key, value in ((CLIENT, client.encode()), (USER_CLASS, bytes.fromhex(user_class)))
        if value
    }


_MARK: Final = re.compile(r"-lengthwise_([0-9a-f]+)_((?:[0-9a-f]{2})*)_")


def score_annotations(score: float, quantiles: Mapping[float, float]) -> dict[str, Any]:
    """Return the annotations of a score and its quantiles, fraction -> tokens, if any."""
    flat = [number for pair in sorted(quantiles.items()) for number in pair]
    return {SCORE: score} | ({QUANTILES: flat} if flat else {})


def _quantiles(value: object) -> Quantiles | None:
    if not isinstance(value, list | tuple) or len(value) > 2 * _MAX_LENGTH:
        return None
    known = [number for item in value if (number := _finite(item)) is not None]
    if len(known) < max(2, len(value)) or len(known) % 2:
        return None
    pairs = tuple(zip(known[::2], known[1::2], strict=True))
    return pairs if are_quantiles(pairs) else None


def _limits(value: object) -> tuple[float, float] | None:
    numbers = [*value] if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or not all(isinstance(number, int | float) for number in numbers):
        return None
    return (numbers[0], numbers[1]) if 0 <= numbers[0] <= numbers[1] else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= _MAX_LENGTH else None


def _positive(value: object) -> float | None:
    number = _finite(value)
    return number if number is not None and number > 0 else None


def _finite(value: object) -> float | None:
    """Return a finite number as a float; None for others, True and "3" included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


_FIELDS: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = {
    SCORE: ("score", _finite),
    USER_CLASS: ("user_class", _text),
    TBT_S: ("tbt_s", _positive),
    CLIENT: ("client", _text),
    QUANTILES: ("quantiles", _quantiles),
    LIMITS: ("limits", _limits),
}
"""Key -> field of `RequestView`, and the reader of its value; None for an unusable value."""
