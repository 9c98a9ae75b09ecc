"""Checks of a request, in their order; the first with a reason decides about the row."""

from collections.abc import Callable
from typing import Final

from lengthwise.tables.files import BadRow
from lengthwise.tables.gateways.formats import CENSORED, REDACTED, TABLE, LogFormat
from lengthwise.tables.requests import LeftOut, LoggedRequest, Reading
from lengthwise.tables.values import count_of, unpacked, value_at

NO_ANSWER: Final = "an output of 0 tokens"
_DETAILS: Final = ("reasoning_tokens", "answer_tokens")
Check = Callable[[LoggedRequest, Reading], LeftOut | BadRow | None]


def missing(name: str, known: LogFormat) -> BadRow:
    """Return the reason of a row without a field."""
    return BadRow(f"it has no {name}" + (f" ({known.advice(name)})" if known is not TABLE else ""))


def _other_model(request: LoggedRequest, reading: Reading) -> LeftOut | None:
    if request.values.get("model") == reading.model:
        return None
    return LeftOut(f"a model other than {reading.model}")


def _redacted(request: LoggedRequest, reading: Reading) -> None:
    if request.sources.get("prompt") == REDACTED:
        reading.warned["prompts redacted by LiteLLM (turn_off_message_logging)"] += 1


def _doubtful_counts(request: LoggedRequest, reading: Reading) -> BadRow | None:
    return BadRow(request.doubt) if request.doubt else None


def _no_text(request: LoggedRequest, reading: Reading) -> BadRow | None:
    if request.prompt is not None and not request.prompt.isascii():
        try:
            request.prompt.encode()
        except UnicodeEncodeError:
            return BadRow("its prompt holds half a surrogate pair, or bytes that are no UTF-8")
    return None


def _cut_by_logger(request: LoggedRequest, reading: Reading) -> None:
    if "prompt_cut" in request.values:
        reading.warned["prompts and their token counts cut by the logger"] += 1


def _several_answers(request: LoggedRequest, reading: Reading) -> LeftOut | None:
    choices = unpacked(request.values.get("choices"))
    number = len(choices) if isinstance(choices, list) else count_of(choices) or 0
    return LeftOut("several answers in one count") if number > 1 else None


def _censored(request: LoggedRequest, reading: Reading) -> LeftOut | None:
    if (why := _lower_bound(request)) is None:
        return None
    if reading.options.censored == "leave-out":
        return LeftOut(f"censored: {why}")
    reading.warned[f"rows kept though censored: {why}"] += 1
    return None


def _lower_bound(request: LoggedRequest) -> str | None:
    """Return why the length of a row is a lower bound only; None if it is not."""
    values = request.values
    if "censored" in values:
        return str(values["censored"])
    reason = values.get("finish_reason")
    if isinstance(reason, list):
        reason = next((end for end in reason if end in CENSORED), None)
    if isinstance(reason, str) and reason in CENSORED:
        return f"finish_reason is {reason}"
    if values.get("broken"):
        return "its stream broke off"
    if request.prompt is not None and "litellm_truncated" in request.prompt:
        return "LiteLLM cut the prompt"
    limit, output = count_of(values.get("limit")), request.counts["output_tokens"]
    is_reached = reason is None and limit is not None and output is not None and output >= limit
    return "max_tokens reached" if is_reached and output else None


def _no_answer(request: LoggedRequest, reading: Reading) -> LeftOut | None:
    return LeftOut(NO_ANSWER) if request.counts["output_tokens"] == 0 else None


def _no_count(request: LoggedRequest, reading: Reading) -> BadRow | None:
    for name in reading.needs:
        count = request.counts.get(name, 1)
        if count is None or (name == "prompt_tokens" and not count):
            if name in _DETAILS and request.known is not TABLE:
                continue
            if (value := request.values.get(name)) is None:
                return missing(name, request.known)
            return BadRow(f"{name} is no whole number of tokens ({str(value)[:40]!r})")
    return None


def _no_prompt(request: LoggedRequest, reading: Reading) -> BadRow | None:
    if request.prompt is not None:
        return None
    if request.sources.get("prompt") == REDACTED:
        return BadRow("LiteLLM redacted the prompt (turn_off_message_logging is set)")
    return missing("prompt", request.known)


def _no_further_length(request: LoggedRequest, reading: Reading) -> BadRow | None:
    for name in reading.further:
        if count_of(value_at(request.row, name)) is None:
            return BadRow(f"{name} is no whole number of tokens")
    return None


class Copies:
    """Check for copies of a row, and for repeated ids of a table."""

    def __init__(self) -> None:
        self._rows: set[int] = set()
        self._ids: set[int] = set()

    def __call__(self, request: LoggedRequest, reading: Reading) -> LeftOut | BadRow | None:
        if (identity := request.values.get("request_id")) is None:
            return None
        text, prompt, arrival = str(identity), request.prompt, request.values.get("arrival_s")
        whole = hash((text, prompt, str(arrival), *request.counts.values()))
        if whole in self._rows and (prompt is not None or arrival is not None):
            return LeftOut("a copy of an earlier row")
        self._rows.add(whole)
        if request.known is TABLE:
            if (own := hash(text)) in self._ids:
                reason = f"request_id is repeated ({text[:40]!r}; each request has its own)"
                return BadRow(reason)
            self._ids.add(own)
        return None


def _wrong_time(request: LoggedRequest, reading: Reading) -> BadRow | None:
    if isinstance(request.time, str) and request.values.get("arrival_s") is not None:
        return BadRow(request.time)
    return None


def checks_of(reading: Reading, known: LogFormat, copies: Check) -> tuple[Check, ...]:
    """Return the checks of the rows of one format, in order; `copies` is one for all files."""
    needs = reading.needs
    every: tuple[tuple[Check, object], ...] = (
        (_other_model, reading.model is not None),
        (_redacted, True),
        (_doubtful_counts, True),
        (_no_text, True),
        (_cut_by_logger, known.prompt_cut),
        (_several_answers, known.choices),
        (_censored, True),
        (_no_answer, "output_tokens" in needs and not reading.further),
        (_no_count, True),
        (_no_prompt, "prompt" in needs),
        (_no_further_length, reading.further),
        (copies, True),
        (_wrong_time, "arrival_s" in needs),
    )
    return tuple(check for check, is_needed in every if is_needed)
