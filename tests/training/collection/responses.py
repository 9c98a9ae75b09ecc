"""Bodies of an OpenAI-style endpoint's responses."""

from typing import Any


def answer(tokens: int, finish_reason: str = "stop", **message: str) -> dict[str, Any]:
    return {
        "choices": [{"message": {"content": "x", **message}, "finish_reason": finish_reason}],
        "usage": {"completion_tokens": tokens},
    }
