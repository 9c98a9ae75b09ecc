"""The text of a request that a ranker scores."""

from __future__ import annotations

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
