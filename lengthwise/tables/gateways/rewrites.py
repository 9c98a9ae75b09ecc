"""Rows of a gateway rewritten before their paths are read: streams merged, nested parts lifted."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from lengthwise.strict_json import parsed
from lengthwise.tables.values import count_of, first_at, unpacked, value_at

_PLACES: Final = (
    *("response.body", "response", "response_body", "resp", "respPayload"),
    *("output.outputBodyJson", "output"),
)
_KEPT: Final = (
    *("id", "model", "modelVersion", "created", "error", "incomplete_details", "stop_reason"),
    "usageMetadata",
)
_ENDS: Final = ("response.completed", "response.incomplete", "message_stop")
LANGFUSE_KEYS: Final = "langfuse.observation."
_TURN: Final = re.compile(r"(?:gen_ai\.prompt|llm\.input_messages)\.(\d+)\.(?:message\.)?(\w+)")
_COUNT: Final = re.compile(r"(?:(?:gen_ai|llm)\.(?:usage|token_count)\.)(.+?)(?:_tokens)?")


def merged_stream(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row with its streamed answer as one response; other rows as they are.

    Later events win. A stream without its end has `broken`.
    """
    for place in _PLACES:
        top, _, inner = place.partition(".")
        held = unpacked(row.get(top)) if inner else row.get(top)
        value = held.get(inner) if inner and isinstance(held, Mapping) else held
        if held is not None and (events := _events(value)) is not None:
            merged = _merged(events)
            return {**row, top: {**held, inner: merged} if value is not held else merged}
    return row


def _events(value: Any) -> list[Any] | None:
    """Return the events of a stream; None for another value."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        value = unpacked(value)
    if isinstance(value, str) and value.lstrip()[:5] in ("data:", "event"):
        value = [line[5:].strip() for line in value.splitlines() if line.startswith("data:")]
    if not isinstance(value, list) or not value:
        return None
    events = [_parsed(item) for item in value]
    marks = {"object", "type", "usageMetadata"}
    return events if any(marks & event.keys() for event in _objects(events)) else None


def _objects(values: Iterable[Any]) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)]


def _parsed(item: Any) -> Any:
    if isinstance(item, str):
        try:
            return parsed(item.removeprefix("data:").strip())
        except ValueError:
            return item.removeprefix("data:").strip()
    return item


def _merged(events: list[Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    finished: dict[int, Any] = {}
    is_whole = "[DONE]" in events
    for event in _objects(events):
        whole = event.get("response", event.get("message"))  # of the APIs with typed events
        for part in _objects((event, whole)):
            told = part.get("usage")
            told = told if isinstance(told, Mapping) else {}
            usage |= {name: count for name, count in told.items() if count is not None}
            merged |= {name: part[name] for name in _KEPT if part.get(name) is not None}
        delta = event.get("delta")
        if isinstance(delta, Mapping) and delta.get("stop_reason"):
            merged["stop_reason"] = delta["stop_reason"]
        is_whole |= event.get("type") in _ENDS
        told = event.get("choices") or event.get("candidates")
        for choice in _objects(told) if isinstance(told, list) else ():
            number, why = count_of(choice.get("index")) or 0, choice.get("finish_reason")
            finished[number] = why or choice.get("finishReason") or finished.get(number)
        # Only the last chunk has usage and no choice; some servers repeat it in every chunk.
        is_whole |= event.get("choices") == [] and bool(event.get("usage"))
    merged["choices"] = [{"index": n, "finish_reason": why} for n, why in finished.items()]
    is_whole |= any(finished.values())
    return merged | {"usage": usage or None, "broken": None if is_whole else True}


def with_payload(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row of a callback with LiteLLM's standard logging payload as its own keys."""
    if row.keys().isdisjoint(("standard_logging_object", "kwargs")):
        return row
    paths = ("standard_logging_object", "kwargs.standard_logging_object")
    payload = _mapping(first_at(row, paths)).items()
    return {**row, **{key: value for key, value in payload if value not in (None, "", {}, [])}}


def with_attributes(span: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a span of OpenTelemetry with its attributes, `usage` and `messages` as keys."""
    found: dict[str, Any] = {}
    events = unpacked(span.get("events"))
    for part in (*(events if isinstance(events, list) else ()), span):
        inner = _mapping(_plain(unpacked(value_at(part, "attributes"))))
        if value_at(part, "name") == "gen_ai.user.message":  # the conventions before 1.37
            found["messages"] = [{"role": "user", "content": inner.get("content")}]
        found |= inner
    if not any(key.startswith(("gen_ai.", "llm.", LANGFUSE_KEYS)) for key in found):
        return {**span, "no_call": "a span without a call of a model"}
    turns: dict[int, dict[str, Any]] = defaultdict(dict)
    details = _mapping(found.get(f"{LANGFUSE_KEYS}usage_details"))
    counts = {f"gen_ai.usage.{k}": n for k, n in details.items()} if details else found
    usage = {count[1]: n for key, n in counts.items() if (count := _COUNT.fullmatch(key))}
    for key, value in found.items():
        if turn := _TURN.fullmatch(key):
            turns[int(turn[1])][turn[2]] = value
    if turns:
        found["messages"] = [turns[number] for number in sorted(turns)]
    return {**span, **found, "usage": usage}


def _mapping(value: Any) -> dict[str, Any]:
    value = unpacked(value)
    return value if isinstance(value, dict) else {}


def _plain(value: Any) -> Any:
    """Return a value, or a list of attributes, of OTLP's JSON as plain data."""
    if isinstance(value, list):
        pairs = [(item.get("key"), item.get("value")) for item in value if isinstance(item, dict)]
        return {key: _plain(inner) for key, inner in pairs if isinstance(key, str)}
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind in ("arrayValue", "kvlistValue"):
        inner = _mapping(inner).get("values") or []
        return list(map(_plain, inner)) if kind == "arrayValue" else _plain(inner)
    return inner if kind.endswith("Value") else value


def without_cache(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of Helicone, marked if it names another request whose answer was sent again."""
    is_hit = set(str(row.get("cache_reference_id") or "0")) - {"0", "-"}
    row = merged_stream(row)
    return {**row, "no_call": "an answer from Helicone's cache"} if is_hit else row


def with_turns(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of the ShareGPT layout with `turns`: a user's first turn and its answer."""
    turns = unpacked(first_at(row, ("conversations", "conversation")))
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        return row
    speakers = [turn.get("from", turn.get("role")) for turn in turns]
    texts = [turn.get("value", turn.get("content")) for turn in turns]
    for (speaker, text), (answerer, answer) in pairwise(zip(speakers, texts, strict=True)):
        if speaker in ("human", "user") and answerer in ("gpt", "assistant", "chatgpt", "bing"):
            return {**row, "turns": [text, answer]}
    return {**row, "turns": []}
