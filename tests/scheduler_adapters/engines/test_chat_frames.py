"""Chat frames: the same text from token ids as from the body of a request, for five templates."""

import pytest
from jinja2 import TemplateError

from lengthwise.conversation import describe, of_body
from lengthwise.tables.prompt_text import MAX_CHARACTERS, CutText, of_chat
from scheduler_adapters.engines import chat_frames
from scheduler_adapters.engines.chat_frames import ChatFrames
from tests.scheduler_adapters.engines.chat_templates import (
    CHATML,
    TEMPLATES,
    WITH_TOOLS,
    byte_tokenizer,
)

PROMPT = "Write a long essay about rain.\n\nIn <b>two</b> parts:\n1. clouds [a]\n2. ünd 雨"
SYSTEM = "Answer in rhymes.\n\nBe kind."
TURNS = [
    {"role": "user", "content": "Say yes."},
    {"role": "assistant", "content": "yes\n\nyes"},
    {"role": "user", "content": PROMPT},
]
WITHOUT_SYSTEM = {"gemma", "mistral"}


@pytest.fixture(scope="module", params=TEMPLATES)
def family(request):
    tokenizer = byte_tokenizer(TEMPLATES[request.param])
    return request.param, tokenizer, ChatFrames(tokenizer)


def ids_of(tokenizer, messages, **variant):
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **variant
    )
    return tokenizer.encode(text, add_special_tokens=False)


def test_a_prompt_has_the_same_text_bare_and_in_a_chat(family):
    _, tokenizer, frames = family
    assert frames.is_learnt
    for ids in (
        tokenizer.encode(PROMPT, add_special_tokens=False),
        [tokenizer.bos_token_id, *tokenizer.encode(PROMPT, add_special_tokens=False)],
        ids_of(tokenizer, TURNS[2:]),
        [tokenizer.bos_token_id, *ids_of(tokenizer, TURNS[2:])],
        ids_of(tokenizer, TURNS[2:], enable_thinking=False),
    ):
        assert frames.text_of(ids) == PROMPT


def test_a_chat_of_several_turns_has_the_text_of_its_body(family):
    name, tokenizer, frames = family
    assert frames.text_of(ids_of(tokenizer, TURNS)) == of_chat({"messages": TURNS})
    whole = [{"role": "system", "content": SYSTEM}, *TURNS]
    if name not in WITHOUT_SYSTEM:
        assert frames.text_of(ids_of(tokenizer, whole)) == of_chat({"messages": whole})


def test_a_system_text_without_a_mark_is_the_users():
    tokenizer = byte_tokenizer(TEMPLATES["mistral"])
    messages = [{"role": "system", "content": SYSTEM}, *TURNS[2:]]
    assert ChatFrames(tokenizer).text_of(ids_of(tokenizer, messages)) == f"{SYSTEM}\n\n{PROMPT}"


def test_results_of_tools_are_no_message_of_the_user():
    tokenizer = byte_tokenizer(CHATML)
    turns = [
        TURNS[2],
        {"role": "assistant", "content": "let me look"},
        {"role": "tool", "content": "it rains"},
    ]
    text = ChatFrames(tokenizer).text_of(ids_of(tokenizer, turns))
    assert text == f"{PROMPT}\n\nlet me look\n\nit rains"


def test_a_chat_without_text_of_the_user_has_none():
    tokenizer = byte_tokenizer(CHATML)
    frames = ChatFrames(tokenizer)
    image = [{"role": "user", "content": "<|image_pad|><|image_pad|>"}]
    assert frames.text_of(ids_of(tokenizer, image)) is None
    assert frames.text_of([]) is None


def test_a_template_of_the_settings_replaces_the_models_own():
    tokenizer = byte_tokenizer(None)
    assert not ChatFrames(tokenizer).is_learnt
    ids = ids_of(tokenizer, TURNS[2:], chat_template=CHATML)
    assert ChatFrames(tokenizer).text_of(ids) != PROMPT
    assert ChatFrames(tokenizer, CHATML).text_of(ids) == PROMPT


def test_a_template_that_takes_parts_only_is_learnt():
    parts = (
        "{% for m in messages %}<|{{ m['role'] }}|>{% for part in m['content'] %}"
        "{{ part['text'] }}{% endfor %}<|end|>{% endfor %}<|assistant|>"
    )
    tokenizer = byte_tokenizer(parts)
    ids = tokenizer.encode(f"<|user|>{PROMPT}<|end|><|assistant|>", add_special_tokens=False)
    assert ChatFrames(tokenizer).text_of(ids) == PROMPT


def test_a_frame_with_the_date_is_learnt_again_the_next_day(monkeypatch):
    class Day:
        number = 1

        @classmethod
        def today(cls):
            return cls.number

    monkeypatch.setattr(chat_frames, "date", Day)
    dated = "Today is day {{ day() }}.<|user|>{{ messages[0]['content'] }}<|assistant|>"
    tokenizer = byte_tokenizer(dated)
    rendered = tokenizer.apply_chat_template

    def with_day(*args, **kwargs):
        return rendered(*args, **kwargs, day=lambda: Day.number)

    tokenizer.apply_chat_template = with_day
    frames = ChatFrames(tokenizer)
    Day.number = 2
    assert frames.text_of(ids_of(tokenizer, TURNS[2:])) == PROMPT


def test_of_a_long_prompt_both_ends_are_decoded(monkeypatch):
    tokenizer = byte_tokenizer(CHATML)
    messages = [{"role": "user", "content": "word " * MAX_CHARACTERS + "z"}]
    found = ChatFrames(tokenizer).text_of(ids_of(tokenizer, messages))
    assert isinstance(found, CutText)
    assert MAX_CHARACTERS - 99 < len(found) <= MAX_CHARACTERS + 1
    monkeypatch.setattr(chat_frames, "_MOST_IDS", 40)
    ids = tokenizer.encode("a " * 100 + "z", add_special_tokens=False)
    found = ChatFrames(tokenizer).text_of(ids)
    assert isinstance(found, CutText)
    assert len(found) < 90
    assert found.endswith("a z")


def called(*names):
    arguments = {"name": "x y", "n": [1, {"a": 2}]}
    calls = [
        {"id": f"callnumb{n}", "type": "function", "function": {"name": a, "arguments": arguments}}
        for n, a in enumerate(names)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(text, number=0):
    return {"role": "tool", "content": text, "tool_call_id": f"callnumb{number}"}


TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {}}}
    for name in ("ls", "move_file", "cd")
]
STEPS = [{"role": "user", "content": PROMPT}, called("mv"), result('{"error": "none\\n"}')]
AGENTS = {
    "new": STEPS[:1],
    "step": STEPS,
    "turns": [*STEPS, TURNS[1], TURNS[0], called("ls"), result("a\nb"), called("cd"), result("")],
    "parallel": [TURNS[0], called("ls", "cd"), result("a"), result("b", 1)],
    "system": [{"role": "system", "content": SYSTEM}, *STEPS],
}


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "without"])
@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_description_is_the_same_from_ids_and_body(name, tools):
    tokenizer, refused = byte_tokenizer(WITH_TOOLS[name]), []
    frames = ChatFrames(tokenizer)
    for kind, messages in AGENTS.items():
        try:
            ids = ids_of(tokenizer, messages, tools=tools)
        except TemplateError:
            refused.append(kind)
            continue
        body = {"messages": messages, "tools": tools}
        assert frames.description_of(ids) == describe(*of_body(body))
    lacking = {"llama-3": ["parallel"], "mistral": ["system"], "gemma": ["system"]}
    assert refused == lacking.get(name, [])


def test_an_unlearnt_template_gives_one_message():
    frames = ChatFrames(byte_tokenizer("{{ raise_exception('never') }}"))
    ids = ids_of(byte_tokenizer(WITH_TOOLS["qwen"]), STEPS, tools=TOOLS)
    assert frames.description_of(ids).startswith("turn1 step0 calls0 ")
    assert frames.description_of([]).startswith("turn1 step0 ")


def test_broken_json_in_calls_and_tools_is_passed_over():
    tokenizer = byte_tokenizer(WITH_TOOLS["qwen"])
    text = tokenizer.decode(ids_of(tokenizer, STEPS, tools=TOOLS))
    broken = text.replace('"move_file"', "{{[").replace('"mv"', "{" * 3000)
    ids = tokenizer.encode(broken, add_special_tokens=False)
    found = ChatFrames(tokenizer).description_of(ids)
    assert found.startswith("turn1 step1 calls0 ")
    assert found.endswith(" | ls cd")
    assert '{"error": "none' in found
