"""The text of a request that a ranker scores, and its normal form.

A ranker learns from single prompts, so of a conversation it scores the user's newest message.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lengthwise.tables.values import unpacked

_RESULTS: Final = frozenset(("tool_result", "toolResult", "functionResponse"))
MAX_CHARACTERS: Final = 16_384
"""Longest text that is sent to a ranker, which reads a few hundred tokens of it."""


def normalised(prompt: str) -> str:
    """Return the prompt in lower case with single spaces; equal results mean the same prompt."""
    return " ".join(prompt.lower().split())


def prompt_of(value: Any) -> str | None:
    """Return the prompt in a cell of a table or log; None without text.

    A cell holds a text, messages, or the body of a request, each also as JSON.
    """
    if type(value) is str and value[:1].isalnum():
        return value
    inner = whole = unpacked(value)
    if isinstance(inner, Mapping):
        if inner.get("role") is not None:
            inner = [inner]
        else:
            found = (prompt_of(inner.get(key)) for key in ("messages", "prompt", "input"))
            inner = next((text for text in found if text), None)
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        only_text = inner[0] if len(inner) == 1 and isinstance(inner[0], str) else None
        inner = of_messages(inner) or only_text
    # Text that holds some other JSON is a prompt itself, unless that JSON is empty.
    for text in (inner, None if whole in ({}, []) else value):
        if isinstance(text, str) and text.strip():
            return text
    return None


def of_chat(body: Mapping[str, Any]) -> str | None:
    """Return the user's newest message in a /v1/chat/completions body; None if it has no text."""
    messages = body.get("messages")
    return of_messages(messages) if isinstance(messages, list) else None


def of_response(body: Mapping[str, Any]) -> str | None:
    """Return the text, or the user's newest item, of a /v1/responses body; None without text."""
    given = body.get("input")
    return of_messages(given) if isinstance(given, list) else start_of(given)


def of_messages(messages: Sequence[Any]) -> str | None:
    """Return the start of the user's newest message; None without one.

    Results of tools do not count, which Anthropic, Bedrock and Gemini write as messages of the
    user. The text of a message is its content, or its parts (Gemini, OpenTelemetry).
    """
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content", message.get("parts"))
            if not isinstance(content, list):
                return start_of(content)
            parts = [part if isinstance(part, Mapping) else {} for part in content]
            kinds = [{str(part.get("type")), *part} for part in parts]
            if not parts or any(map(_RESULTS.isdisjoint, kinds)):
                texts = [part.get("text", part.get("content")) for part in parts]
                return start_of("\n".join(text for text in texts if isinstance(text, str)))
    return None


def start_of(prompt: object) -> str | None:
    """Return the part of a prompt that is scored; None for an empty or no text."""
    return prompt[:MAX_CHARACTERS] if isinstance(prompt, str) and prompt else None
