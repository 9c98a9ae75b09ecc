"""Streamed answers in a log, as lists of chunks or as raw server-sent events."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lengthwise.strict_json import parsed
from lengthwise.tables.values import count_of, unpacked

_PLACES: Final = (
    *("response.body", "response", "response_body", "resp", "respPayload"),
    *("output.outputBodyJson", "output"),
)
_KEPT: Final = (
    *("id", "model", "modelVersion", "created", "error", "incomplete_details", "stop_reason"),
    "usageMetadata",
)
_ENDS: Final = ("response.completed", "response.incomplete", "message_stop")


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
