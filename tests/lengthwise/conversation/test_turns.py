"""Turns: one conversation from the bodies of three APIs, whatever these hold."""

import pytest

from lengthwise.conversation.turns import Conversation, Turn, of_body

TURNS = [Turn("user", "Sort it."), Turn("assistant", "", ("ls", "cd")), Turn("tool", "a")]
OPENAI = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Sort it."}, {"type": "image"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": n}} for n in ("ls", "cd")]},
        {"role": "tool", "content": "a"},
    ],
    "tools": [{"type": "function", "function": {"name": "ls"}}, {"type": "function"}],
}
ANTHROPIC = {
    "messages": [
        {"role": "user", "content": "Sort it."},
        {"role": "assistant", "content": [{"type": "tool_use", "name": n} for n in ("ls", "cd")]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"text": "a"}]}]},
    ],
    "tools": [{"name": "ls"}, {"name": 3}],
}
RESPONSES = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Sort it."}]},
        {"type": "function_call", "name": "ls"},
        {"type": "function_call", "name": "cd"},
        {"type": "function_call_output", "output": "a"},
    ],
    "tools": [{"type": "function", "name": "ls"}, {"type": "web_search"}],
}


@pytest.mark.parametrize("body", [OPENAI, ANTHROPIC])
def test_apis_of_messages_have_the_same_turns(body):
    assert of_body(body) == Conversation(TURNS, ["ls", ""])


def test_items_of_responses_are_turns():
    apart = [TURNS[0], Turn("assistant", "", ("ls",)), Turn("assistant", "", ("cd",)), TURNS[2]]
    assert of_body(RESPONSES) == Conversation(apart, ["ls", ""])
    assert of_body({"input": "Sort it."}) == Conversation(TURNS[:1], [])


@pytest.mark.parametrize("given", [None, 3, {"a": 1}])
def test_a_body_without_messages_has_no_turns(given):
    assert of_body({"messages": given}) is None


def test_what_is_no_message_is_left_out():
    odd = [None, 3, {}, {"role": 5, "content": 7}, {"type": "reasoning"}, {"role": "user"}]
    odd += [{"role": "assistant", "tool_calls": [None, {"function": "f"}, {}], "content": {}}]
    found = of_body({"messages": odd, "tools": {"a": 1}})
    assert found.turns == [Turn("5"), Turn("user"), Turn("assistant", "", ("", "", ""))]
    assert found.tools == []
