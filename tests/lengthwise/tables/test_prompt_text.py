"""The text of a request that a ranker scores."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from lengthwise.tables import prompt_text

PARTS = [{"type": "text", "text": "one"}, {"type": "image_url"}, {"text": "two"}]
TURNS = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "answer", "tool_calls": [{"function": {"arguments": "call"}}]},
    {"role": "tool", "content": [{"type": "text", "text": "result"}]},
    {"role": "user", "content": PARTS},
    {"role": "developer", "content": "be kind"},
]
READ = "one\ntwo\n\nbe short\n\nbe kind\n\nfirst\n\nanswer\n\ncall\n\nresult"


def user(text: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": TURNS}, READ),
        (user("ok") | {"system": [{"type": "text", "text": "task"}]}, "ok\n\ntask"),
        (user("ok") | {"tools": [{"id": "a b", "description": "task"}]}, "ok\n\na b\n\ntask"),
        (user("ok") | {"documents": [{"data": "Zm9v", "id": {"text": "task"}}]}, "ok\n\ntask"),
        (user("just this"), "just this"),
        (user([{"type": "image_url", "image_url": {"url": "data:x"}}]) | {"system": "s"}, None),
        ({"messages": [TURNS[0]]}, None),
        ({"messages": "text"}, None),
    ],
)
def test_all_texts_of_a_chat_count_and_the_users_newest_is_first(body, text):
    assert prompt_text.of_chat(body) == text


def test_a_response_counts_instructions_and_history_out_of_sight():
    assert prompt_text.of_response({"input": TURNS}) == READ
    assert prompt_text.of_response({"input": "ok", "instructions": "task"}) == "ok\n\ntask"
    hidden = prompt_text.of_response({"input": "ok", "previous_response_id": "resp_1"})
    assert (hidden, type(hidden)) == ("ok", prompt_text.CutText)


@given(st.text(alphabet="ab \n\u200b\u3164\u2800.", max_size=300), st.integers(1, 3000))
def test_blanks_hide_nothing_and_cost_no_place(text, count):
    assert prompt_text.shortened(text, 300).count("a") == text.count("a")
    for blank in (" ", "\n", "\u200b", " \u2800", "\u3164", "\U000e0041", "\x00"):
        assert prompt_text.scored_text(f"hi{blank * (count + 16)}task") == "hi task"


def test_what_is_cut_is_cut_from_the_middle_and_the_text_says_so():
    limit = prompt_text.MAX_CHARACTERS
    kept = "ab " * (limit // 3)
    assert type(prompt_text.scored_text(kept)) is str
    for middle in ("b, " * limit, "b, " * 100 * limit, " " * 100 * limit):
        cut = prompt_text.scored_text(kept[:-9] + middle + kept[9:])
        assert isinstance(cut, prompt_text.CutText)
        assert len(cut) <= limit + 1
        assert prompt_text.scored_text(cut) == cut
        assert cut.startswith(kept[: limit // 2])
        assert cut.endswith(kept[-limit // 2 :])
    for prompt in (None, "", 5):
        assert prompt_text.scored_text(prompt) is None


def test_endless_words_are_split_and_styled_letters_are_plain():
    text = f"{'x' * 64} {'漢' * 200} {'Tell' * 99}"
    assert max(map(len, (prompt_text.scored_text(text) or "").split())) == 200
    styled = "\uff37\uff52ite \U0001d41a \U0001d4f5\u24deng \uff11"
    assert prompt_text.scored_text(styled) == "Write a long 1"
    for sign in " -.\n":
        spelled = prompt_text.scored_text(sign.join("Write a very long story"))
        assert isinstance(spelled, prompt_text.CutText)
    plain = "Übersetze\uff0c…:\n\n    if x:  return 👩🏽\u200d🚀\ufe0f\n"
    assert prompt_text.scored_text(plain) == plain


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
def test_the_prompt_is_the_users_newest_text(value, prompt):
    assert prompt_text.prompt_of(value) == prompt
