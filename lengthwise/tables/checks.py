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
_DETAILS: Final = ("reasoning_tokens", "answer_tokens")


def missing(name: str, known: LogFormat) -> BadRow:
    """Return the reason of a row without a field."""
    return BadRow(f"it has no {name}" + (f" ({known.advice(name)})" if not known.is_table else ""))


class Checks:
    """Checks of the requests of all files of one reading."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._rows: set[int] = set()
        self._ids: set[int] = set()

    def reason_against(self, request: LoggedRequest) -> LeftOut | BadRow | None:
        """Return why a request is left out or bad; None for one that is kept. Counts warnings."""
        reading, values, output = self._reading, request.values, request.counts["output_tokens"]
        if reading.model is not None and values.get("model") != reading.model:
            return LeftOut(f"a model other than {reading.model}")
        if request.sources.get("prompt") == REDACTED:
            reading.warned["prompts redacted by LiteLLM (turn_off_message_logging)"] += 1
        if request.doubt:
            return BadRow(request.doubt)
        if request.prompt is not None and not request.prompt.isascii():
            try:
                request.prompt.encode()
            except UnicodeEncodeError:
                return BadRow("its prompt holds half a surrogate pair, or bytes that are no UTF-8")
        if "prompt_cut" in values:
            reading.warned["prompts and their token counts cut by the logger"] += 1
        if "choices" in values:
            choices = unpacked(values["choices"])
            if (len(choices) if isinstance(choices, list) else count_of(choices) or 0) > 1:
                return LeftOut("several answers in one count")
        if (why := _lower_bound(request)) is not None:
            if reading.options.censored == "leave-out":
                return LeftOut(f"censored: {why}")
            reading.warned[f"rows kept though censored: {why}"] += 1
        if output == 0 and "output_tokens" in reading.needs and not reading.further:
            return LeftOut(NO_ANSWER)
        if (reason := _lack(request, reading) or self._copy(request)) is not None:
            return reason
        has_time = "arrival_s" in reading.needs and values.get("arrival_s") is not None
        return BadRow(request.time) if has_time and isinstance(request.time, str) else None

    def _copy(self, request: LoggedRequest) -> LeftOut | BadRow | None:
        """Return the reason of a copy of a row, or of a repeated id of a table."""
        if (identity := request.values.get("request_id")) is None:
            return None
        text, prompt, arrival = str(identity), request.prompt, request.values.get("arrival_s")
        whole = hash((text, prompt, str(arrival), *request.counts.values()))
        if whole in self._rows and (prompt is not None or arrival is not None):
            return LeftOut("a copy of an earlier row")
        self._rows.add(whole)
        if request.known.is_table:
            if (own := hash(text)) in self._ids:
                return BadRow(f"request_id is repeated ({text[:40]!r}; each request has its own)")
            self._ids.add(own)
        return None


def _lower_bound(request: LoggedRequest) -> str | None:
    """Return why the length of a row is a lower bound only; None if it is not."""
    values = request.values
    if "censored" in values:
        return str(values["censored"])
    ends = _ends(values.get("finish_reason"))
    if odd := next((end for end in ends if plain(end) not in WORDS["whole"]), ""):
        return f"finish_reason is {odd[:40]}"
    if values.get("broken"):
        return "its stream broke off"
    if request.prompt is not None and "litellm_truncated" in request.prompt:
        return "LiteLLM cut the prompt"
    limit, output = count_of(values.get("limit")), request.counts["output_tokens"]
    is_reached = not ends and limit is not None and output is not None and output >= limit
    return "max_tokens reached" if is_reached and output else None


def _ends(value: Any) -> list[str]:
    """Return the reasons in a value: a text, a list, or an object, each also as text."""
    value = unpacked(value)
    if isinstance(value, Mapping):
        value = value.get("type", value.get("reason"))
    if isinstance(value, list):
        return [end for each in value for end in _ends(each)]
    text = "" if value is None else str(value)
    ends = re.findall(r"\w[\w-]*", text) if text[:1] in ("(", "[") else [text]
    return [end for end in ends if plain(end) not in WORDS["no_reason"]]


def _lack(request: LoggedRequest, reading: Reading) -> LeftOut | BadRow | None:
    """Return the reason of a row without a count or the prompt that the reading needs."""
    for name in reading.needs:
        count = request.counts.get(name, 1)
        if count is None or (name == "prompt_tokens" and not count):
            if name in _DETAILS and not request.known.is_table:
                continue
            if (value := request.values.get(name)) is None:
                if name == "output_tokens" and "trace_id" in request.values:
                    return LeftOut("a row of a trace without output tokens")
                return missing(name, request.known)
            return BadRow(f"{name} is no whole number of tokens ({str(value)[:40]!r})")
    if request.prompt is None and "prompt" in reading.needs:
        if request.sources.get("prompt") == REDACTED:
            return BadRow("LiteLLM redacted the prompt (turn_off_message_logging is set)")
        return missing("prompt", request.known)
    for name in reading.further:
        if count_of(request.values.get(name)) is None:
            return BadRow(f"{name} is no whole number of tokens")
    return None
