"""The text of a request that a ranker scores."""

from typing import Any

import numpy as np
import pytest

from lengthwise.tables import prompt_text


def test_a_conversation_is_scored_by_the_users_newest_message() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image_url"}, {"text": "two"}]
    messages = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "answer"},
    ]
    assert prompt_text.of_chat({"messages": messages}) == "one\ntwo"
    assert prompt_text.of_response({"input": messages}) == "one\ntwo"
    assert prompt_text.of_response({"input": "text"}) == "text"
    assert prompt_text.of_chat({"messages": messages[2:]}) is None
    assert prompt_text.of_chat({"messages": "text"}) is None


def test_only_the_start_of_a_prompt_is_sent() -> None:
    limit = prompt_text.MAX_CHARACTERS
    assert prompt_text.start_of("x" * (limit + 1)) == "x" * limit
    assert prompt_text.start_of(None) is None


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ("hello", "hello"),
        ("[1, 2] is a list", "[1, 2] is a list"),
        ('{"task": "translate"}', '{"task": "translate"}'),
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}], "hi"),
        ('[{"role": "user", "content": "hi"}]', "hi"),
        (np.array([{"role": "user", "content": "hi"}]), "hi"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "hi"),
        ({"role": "user", "content": "hi"}, "hi"),
        (["hi"], "hi"),
        (["hi", "ho"], None),
        ([{"role": "assistant", "content": "x"}], None),
        (
            [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"toolResult": 1}]}],
            "hi",
        ),
        ([{"role": "user", "parts": [{"functionResponse": {}}]}], None),
        ([{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}], None),
        (" ", None),
        ("{}", None),
        (float("nan"), None),
        (None, None),
    ],
)
def test_the_prompt_is_the_users_newest_text(value: Any, prompt: str | None) -> None:
    assert prompt_text.prompt_of(value) == prompt
