"""Rows of a gateway rewritten before their paths are read: streams merged, nested parts lifted."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from lengthwise.tables.gateways import LAYOUTS, WORDS
from lengthwise.tables.values import count_of, unpacked

_ATTRIBUTES: Final = ("attributes", "tags", "SpanAttributes", "span_attributes")
_TURN: Final = re.compile(r"(?:gen_ai\.prompt|llm\.input_messages)\.(\d+)\.(?:message\.)?(\w+)")


def merged_stream(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row with its streamed answer as one response; other rows as they are.

    Later events win. A stream without its end has `broken`.
    """
    for place in LAYOUTS["names"]["response"][:-1]:
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
    texts = (
        item.removeprefix("data:").strip() if isinstance(item, str) else item for item in value
    )
    events = list(map(unpacked, texts))
    starts, marks = WORDS["events"], {"object", "usageMetadata", "done"}
    kinds = [str(x.get("type")).startswith(starts) or marks & x.keys() for x in _objects(events)]
    return events if any(kinds) else None


def _objects(values: Iterable[Any]) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)]


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
            merged |= {name: part[name] for name in WORDS["kept"] if part.get(name) is not None}
        delta = event.get("delta")
        if isinstance(delta, Mapping) and delta.get("stop_reason"):
            merged["stop_reason"] = delta["stop_reason"]
        is_whole |= event.get("type") in WORDS["ends"]
        told = event.get("choices") or event.get("candidates")
        for choice in _objects(told) if isinstance(told, list) else ():
            number, why = count_of(choice.get("index")) or 0, choice.get("finish_reason")
            finished[number] = why or choice.get("finishReason") or finished.get(number)
        # Only the last chunk has usage and no choice; some servers repeat it in every chunk.
        is_whole |= event.get("choices") == [] and bool(event.get("usage"))
    merged["choices"] = [{"index": n, "finish_reason": why} for n, why in finished.items()]
    is_whole |= any(finished.values())
    return merged | {"usage": usage or None, "broken": None if is_whole else True}


def with_attributes(span: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a span, or a record of a log, with its attributes under their dotted names."""
    found: dict[str, Any] = {}
    events = unpacked(span.get("events"))
    for part in _objects([*(events if isinstance(events, list) else ()), span]):
        inner = _plain(unpacked(next((part[key] for key in _ATTRIBUTES if part.get(key)), None)))
        if part.get("name") == "gen_ai.user.message" and isinstance(inner, dict):
            found["messages"] = [{"role": "user", "content": inner.get("content")}]  # before 1.37
        found |= inner if isinstance(inner, dict) else {}
    own = {re.sub(r"^(?:Span|)[aA]ttributes\.", "", key): value for key, value in span.items()}
    found |= {key: value for key, value in own.items() if key.startswith(WORDS["spaces"])}
    is_call = any(f"{key}.".startswith(WORDS["spaces"]) for key in found)
    turns: dict[int, dict[str, Any]] = defaultdict(dict)
    for turn, value in ((_TURN.fullmatch(key), value) for key, value in found.items()):
        if turn:
            turns[int(turn[1])][turn[2]] = value
    found |= {"messages": [turns[number] for number in sorted(turns)]} if turns else {}
    marks = {"is_call": True} if is_call else {"no_call": "a span without a call of a model"}
    return {**span, **found, **marks}


def _plain(value: Any) -> Any:
    """Return a value, or a list of attributes, of OTLP's JSON or of Jaeger's tags as plain data."""
    if isinstance(value, list):
        pairs = [(item.get("key"), item.get("value")) for item in _objects(value)]
        return {key: _plain(inner) for key, inner in pairs if isinstance(key, str)} or value
    kind, inner = next(iter(value.items())) if isinstance(value, dict) and value else ("", None)
    values = inner.get("values") if isinstance(inner, dict) else None
    if kind in ("arrayValue", "kvlistValue") and len(value) == 1:
        return list(map(_plain, values or [])) if kind == "arrayValue" else _plain(values or [])
    return inner if str(kind).endswith("Value") and len(value) == 1 else value


def with_turns(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of the ShareGPT layout with `turns`: a user's first turn and its answer."""
    turns = unpacked(row.get("conversations", row.get("conversation")))
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        return row
    speakers = [turn.get("from", turn.get("role")) for turn in turns]
    texts = [turn.get("value", turn.get("content")) for turn in turns]
    for (speaker, text), (answerer, answer) in pairwise(zip(speakers, texts, strict=True)):
        if speaker in ("human", "user") and answerer in ("gpt", "assistant", "chatgpt", "bing"):
            return {**row, "turns": [text, answer]}
    return {**row, "turns": []}
