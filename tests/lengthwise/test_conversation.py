"""Descriptions: one grammar, one text for the bodies of three APIs, bounds for any request."""

import time

import pytest

from lengthwise.conversation import VERSION, Turn, describe, described, of_body

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
    assert of_body(body) == (TURNS, ["ls", ""])


def test_items_of_responses_are_turns():
    apart = [TURNS[0], Turn("assistant", "", ("ls",)), Turn("assistant", "", ("cd",)), TURNS[2]]
    assert of_body(RESPONSES) == (apart, ["ls", ""])
    assert of_body({"input": "Sort it."}) == (TURNS[:1], [])


@pytest.mark.parametrize("given", [None, 3, {"a": 1}])
def test_a_body_without_messages_has_no_turns(given):
    assert of_body({"messages": given}) is None


def test_what_is_no_message_is_left_out():
    odd = [None, 3, {}, {"role": 5, "content": 7}, {"type": "reasoning"}, {"role": "user"}]
    odd += [{"role": "assistant", "tool_calls": [None, {"function": "f"}, {}], "content": {}}]
    turns, tools = of_body({"messages": odd, "tools": {"a": 1}})
    assert turns == [Turn("5"), Turn("user"), Turn("assistant", "", ("", "", ""))]
    assert tools == []


def call(name):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name}}]}


def result(text):
    return {"role": "tool", "content": text}


def test_the_grammar_of_version_one():
    user = {"role": "user", "content": "Move 'a.txt', then list 2 files. Ok?"}
    first = [user, call("ls"), result("a"), {"role": "assistant", "content": "Done."}]
    last = [call("mv"), result("None"), call("mv"), result('{"error": "no such file"}')]
    tools = [{"function": {"name": name}} for name in ("mv", "list_files", "getFile")]
    found = describe(*of_body({"messages": [*first, user, *last], "tools": tools}))
    assert VERSION == 1
    assert found == (
        "turn2 step2 calls2 at1 again1 errors1 result3 user3 sentences2 joins1 numbers1 quotes2 "
        "questions1 tools3 match4 named1 bad | mv | "
        '{"error": "no such file"} | '
        "Move 'a.txt', then list 2 files. Ok? | mv list_files getFile"
    )


def test_every_api_has_the_same_description():
    texts = {described(body) for body in (OPENAI, ANTHROPIC, RESPONSES)}
    assert len(texts) == 1
    assert described(texts.copy().pop()) in texts
    assert described("Sort it.") == described([{"role": "user", "content": "Sort it."}])
    assert described({"prompt": "Sort it."}) == described("Sort it.")


def test_a_large_request_is_described_in_time():
    image = {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "See."}]}
    turns = [image, call("ls"), result("x " * 1_000_000), call(""), result("")]
    body = {"messages": turns * 100, "tools": [{"type": "function"}] * 5000}
    start_s = time.process_time()
    found = describe(*of_body(body))
    assert time.process_time() - start_s < 1
    assert len(found) < 1200
    assert found.startswith("turn8 step2 calls2 at1 again0 errors0 result0 user1 ")
    assert describe(*of_body({"messages": []})).startswith("turn0 step0 ")
