"""Descriptions: their grammar, and bounds for any request."""

import time

from lengthwise.conversation.description import VERSION, describe, described
from lengthwise.conversation.turns import of_body
from tests.lengthwise.conversation.test_turns import ANTHROPIC, OPENAI, RESPONSES


def call(name):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name}}]}


def result(text):
    return {"role": "tool", "content": text}


def test_the_grammar_of_version_one():
    user = {"role": "user", "content": "Move 'a.txt', then list 2 files. Ok?"}
    first = [user, call("ls"), result("a"), {"role": "assistant", "content": "Done."}]
    last = [call("mv"), result("None"), call("mv"), result('{"error": "no such file"}')]
    tools = [{"function": {"name": name}} for name in ("mv", "list_files", "getFile")]
    found = describe(of_body({"messages": [*first, user, *last], "tools": tools}))
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
    found = describe(of_body(body))
    assert time.process_time() - start_s < 1
    assert len(found) < 1200
    assert found.startswith("turn8 step2 calls2 at1 again0 errors0 result0 user1 ")
    assert describe(of_body({"messages": []})).startswith("turn0 step0 ")
