"""The text that a ranker scores, out of what the OpenAI API takes as a prompt.

A ranker learns from single prompts, so of a conversation it sees the newest message of the user.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

MAX_CHARACTERS: Final = 16_384
"""Only the start of a prompt is sent: rankers read a few hundred tokens, services refuse megabytes
(and with one such prompt all others of its batch)."""


def normalised(prompt: str) -> str:
    """Return the prompt in lower case with single spaces; equal results mean the same prompt."""
    return " ".join(prompt.lower().split())


def of_chat(body: Mapping[str, Any]) -> str | None:
    """Return the user's newest message in a /v1/chat/completions body; None if it has no text."""
    messages = body.get("messages")
    return of_messages(messages) if isinstance(messages, list) else None


def of_response(body: Mapping[str, Any]) -> str | None:
    """Return the text, or the user's newest item, of a /v1/responses body; None without text."""
    given = body.get("input")
    return of_messages(given) if isinstance(given, list) else start_of(given)


def of_messages(messages: Sequence[Any]) -> str | None:
    """Return the text of the user's newest message; None if there is none.

    What the user's tools have answered is no message, though Anthropic's API writes it as one.
    """
    for message in reversed(messages):
        is_users = isinstance(message, Mapping) and message.get("role") == "user"
        if is_users and not _holds_results_only(message.get("content")):
            return _text(message.get("content"))
    return None


def _holds_results_only(content: object) -> bool:
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(part, Mapping) and part.get("type") == "tool_result" for part in content)
    )


def _text(content: object) -> str | None:
    """A string as it is; of a list of parts those that are text, joined by line ends."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "\n".join(part for part in parts if isinstance(part, str))
    return start_of(content)


def start_of(prompt: object) -> str | None:
    """Return the part of a prompt that is scored; None if it is no text, or empty."""
    return prompt[:MAX_CHARACTERS] if isinstance(prompt, str) and prompt else None
