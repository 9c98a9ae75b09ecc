"""Checks of a request, in their order; the first with a reason decides about the row."""

import re
from collections.abc import Mapping
from typing import Any, Final

from lengthwise.tables.files import BadRow
from lengthwise.tables.gateways import WORDS
from lengthwise.tables.gateways.formats import REDACTED, LogFormat
from lengthwise.tables.requests import LeftOut, LoggedRequest, Reading
from lengthwise.tables.values import count_of, plain, unpacked

NO_ANSWER: Final = "an output of 0 tokens"
_REDACTED: Final = "prompts redacted by LiteLLM (turn_off_message_logging)"
_REDACTION: Final = "LiteLLM redacted the prompt (turn_off_message_logging is set)"
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_DETAILS: Final = ("reasoning_tokens", "answer_tokens")


def missing(name: str, known: LogFormat) -> BadRow:
    """Return the reason of a row without a field."""
    return BadRow(f"it has no {name}" + (f" ({known.advice(name)})" if not known.is_table else ""))


class Checks:
    """Checks of the requests of all files of one reading."""

    def __init__(self, reading: Reading) -> None:
        self._reading, self._rows, self._ids = reading, set[int](), set[int]()

    def reason_against(self, request: LoggedRequest) -> LeftOut | BadRow | None:
        """Return why a request is left out or bad; None for one that is kept. Counts warnings."""
        reading, values, output = self._reading, request.values, request.counts["output_tokens"]
        choices, why = unpacked(values.get("choices")), _lower_bound(request)
        number = len(choices) if isinstance(choices, list) else count_of(choices)
        is_kept = reading.options.censored == "keep"
        is_empty = output == 0 and "output_tokens" in reading.needs and not reading.further
        checks: tuple[tuple[object, LeftOut | BadRow], ...] = (
            (
                reading.model not in (None, values.get("model")),
                LeftOut(f"a model other than {reading.model}"),
            ),
            (request.doubt, BadRow(request.doubt)),
            (
                _SURROGATE.search(request.prompt or ""),
                BadRow("its prompt holds half a surrogate pair, or bytes that are no UTF-8"),
            ),
            ((number or 0) > 1, LeftOut("several answers in one count")),
            (why and not is_kept, LeftOut(f"censored: {why}")),
            (is_empty, LeftOut(NO_ANSWER)),
        )
        reason = next((reason for is_so, reason in checks if is_so), None)
        for is_so, text in (
            (request.sources.get("prompt") == REDACTED, _REDACTED),
            ("prompt_cut" in values, "prompts and their token counts cut by the logger"),
            (why and is_kept, f"rows kept though censored: {why}"),
        ):
            reading.warned.update([text] * (bool(is_so) and reason is None))
        reason = reason or _lack(request, reading) or self._copy(request)
        has_time = "arrival_s" in reading.needs and values.get("arrival_s") is not None
        is_bad = reason is None and has_time and isinstance(request.time, str)
        return BadRow(request.time) if is_bad else reason

    def _copy(self, request: LoggedRequest) -> LeftOut | BadRow | None:
        """Return the reason of a copy of a row, or of a repeated id of a table."""
        text, prompt = str(request.values.get("request_id", "")), request.prompt
        arrival, own = request.values.get("arrival_s"), hash(text)
        whole = hash((text, prompt, str(arrival), *request.counts.values()))
        is_copy = whole in self._rows and (prompt is not None or arrival is not None)
        is_repeated = bool(text) and request.known.is_table and own in self._ids
        why = f"request_id is repeated ({text[:40]!r}; each request has its own)"
        self._rows.update([whole] * bool(text))
        self._ids.update([own] * bool(text))
        return (
            LeftOut("a copy of an earlier row") if is_copy else BadRow(why) if is_repeated else None
        )


def _lower_bound(request: LoggedRequest) -> str:
    """Return why the length of a row is a lower bound only; "" if it is not."""
    values, ends = request.values, _ends(request.values.get("finish_reason"))
    odd = next((end for end in ends if plain(end) not in WORDS["whole"]), "")
    limit, output = count_of(values.get("limit")), request.counts["output_tokens"]
    is_reached = not ends and limit is not None and output is not None and output >= limit
    reasons = (
        str(values.get("censored", "")),
        f"finish_reason is {odd[:40]}" * bool(odd),
        "its stream broke off" * bool(values.get("broken")),
        "LiteLLM cut the prompt" * ("litellm_truncated" in (request.prompt or "")),
        "max_tokens reached" * bool(is_reached and output),
    )
    return next(filter(None, reasons), "")


def _ends(value: Any) -> list[str]:
    """Return the reasons in a value: a text, a list, or an object, each also as text."""
    value = unpacked(value)
    value = value.get("type", value.get("reason")) if isinstance(value, Mapping) else value
    if isinstance(value, list):
        return [end for each in value for end in _ends(each)]
    text = "" if value is None else str(value)
    ends = re.findall(r"\w[\w-]*", text) if text[:1] in ("(", "[") else [text]
    return [end for end in ends if plain(end) not in WORDS["no_reason"]]


def _lack(request: LoggedRequest, reading: Reading) -> LeftOut | BadRow | None:
    """Return the reason of a row without a count or the prompt that the reading needs."""
    values, known = request.values, request.known
    is_redacted = request.sources.get("prompt") == REDACTED
    for name in sorted(reading.needs, key="prompt".__eq__):
        count = request.prompt if name == "prompt" else request.counts.get(name, 1)
        is_detail = name in _DETAILS and not known.is_table
        if (count is None or (name == "prompt_tokens" and not count)) and not is_detail:
            is_span = name == "output_tokens" and "trace_id" in values and name not in values
            why = f"{name} is no whole number of tokens ({str(values.get(name))[:40]!r})"
            lack = missing(name, known) if name not in values or name == "prompt" else BadRow(why)
            lack = lack if not is_redacted or name != "prompt" else BadRow(_REDACTION)
            return LeftOut("a row of a trace without output tokens") if is_span else lack
    bad = [name for name in reading.further if count_of(values.get(name)) is None]
    return BadRow(f"{bad[0]} is no whole number of tokens") if bad else None
