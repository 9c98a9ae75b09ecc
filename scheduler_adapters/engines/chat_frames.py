"""The texts of a prompt, given as token ids: without the frame that a chat template adds.

The frame is learnt from the template itself. Short conversations are rendered, and what stands
between their texts becomes a pattern: the start of a chat, the end of one role's text and the
start of the next. A prompt that starts as no chat does is one text. Special tokens are left out.
So a prompt has the same text, and the same score, through every endpoint. With other conversations
the places of tools, calls and results are learnt, for descriptions of requests.
Imports no engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import takewhile
from typing import Any, Final, NamedTuple

from lengthwise.conversation.description import describe
from lengthwise.conversation.turns import Conversation, Turn, name_of
from lengthwise.tables.prompt_text import CutText, of_chat, scored_text

_PROBES: Final = (
    ("user",),
    ("user", "assistant", "user"),
    ("system", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "tool", "assistant", "user"),
    ("user", "call", "tool", "call", "tool"),
    ("user", "call", "tool", "tool", "assistant", "user", "call", "tool"),
    ("system", "user", "call", "tool", "assistant", "user"),
)
"""Roles of the rendered conversations, a call being a message of the assistant that calls a
function; a template may refuse some of them."""
_VARIANTS: Final[Sequence[dict[str, Any]]] = (
    {},
    {"enable_thinking": False},
    {"enable_thinking": True},
    {"tools": []},
)
"""Arguments of templates that change the frame; others ignore them."""
_NAMES: Final = ("qwert", "zxcvb")
"""Two names of a function: calls and tools are where the renderings of both differ."""
_CALL_ID: Final = "probecal1"
_TOOL_START: Final = re.compile(
    r'(?:\[\s*)?\{\s*(?:"type":\s*"function",\s*"function":\s*\{\s*)?"name":\s*"$'
)
_JSON: Final = json.JSONDecoder()
_MOST_BROKEN: Final = 16
"""Places of a text that look like JSON and are not, before the rest is left unread."""
_MOST_IDS: Final = 16_384
"""Token ids decoded at each end of a prompt; a ranker reads a few hundred of them."""


class _Gap(NamedTuple):
    """Pattern between two texts."""

    pattern: str
    after: str
    """Role of the next text."""
    end: str | None = None
    """Pattern behind the tools that follow `pattern`; None where none follow."""


class ChatFrames:
    """Texts of prompts by the tokenizer and the chat template of a served model.

    Args:
        tokenizer: of transformers or of vLLM.
        template: the chat template, if it is not the tokenizer's own.
    """

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        special = {token.content for token in added if token.special}
        special |= set(getattr(tokenizer, "all_special_tokens", ()))
        longest_first = sorted(map(re.escape, filter(None, special)), key=len, reverse=True)
        self._special = re.compile("|".join(longest_first) or r"(?!)")
        first = re.escape(getattr(tokenizer, "bos_token", None) or "")
        self._first = re.compile(rf"(?:\s*{first})*" if first else "")
        self._learn()

    def text_of(self, ids: Sequence[int]) -> str | None:
        """Return the text by which a prompt is scored, as `prompt_text` makes it from a body.

        None for a prompt without text.
        """
        text, is_cut = self._decoded(ids)
        turns, tools = self._turns(text)
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        found = (
            of_chat({"messages": messages, "tools": tools})
            if messages
            else scored_text(self._plain(text))
        )
        return CutText(found) if found and is_cut else found

    def description_of(self, ids: Sequence[int]) -> str:
        """Return the text that describes a prompt to rankers of descriptions."""
        return describe(self.conversation_of(ids))

    def conversation_of(self, ids: Sequence[int]) -> Conversation:
        """Return the turns and tools of a prompt, as `turns.of_body` finds them in a body.

        A prompt that starts as no chat does is one message of the user.
        """
        text, _ = self._decoded(ids)
        turns, tools = self._turns(text)
        if turns and turns[-1] == ("assistant", "", ()):
            turns.pop()  # The answer, which is to come.
        return Conversation(turns or [Turn("user", self._plain(text))], [*map(name_of, tools)])

    @property
    def is_learnt(self) -> bool:
        """Return False if the model has no chat template, or its texts have no frame."""
        return None in self._next

    def _decoded(self, ids: Sequence[int]) -> tuple[str, bool]:
        """Return the text of a prompt, and whether it is cut: of a long one both ends."""
        is_cut = len(ids) > 2 * _MOST_IDS
        texts = (
            self._tokenizer.decode(part, skip_special_tokens=False)
            for part in ([ids[:_MOST_IDS], ids[-_MOST_IDS:]] if is_cut else [ids])
        )
        return self._first.sub("", " ".join(texts), count=1), is_cut

    def _learn(self) -> None:
        self._call: re.Pattern[str] | None = None
        """The place of a function's name in a call that is not written as JSON."""
        gaps: dict[str | None, dict[str, _Gap]] = {}
        for variant in _VARIANTS:
            for role, gap in (found for roles in _PROBES for found in self._gaps(roles, variant)):
                gaps.setdefault(role, {}).setdefault(gap.pattern, gap)
        self._next: dict[str | None, tuple[re.Pattern[str], list[_Gap]]] = {}
        for role, known in gaps.items():
            longest_first = [known[pattern] for pattern in sorted(known, key=len, reverse=True)]
            pattern = "|".join(rf"(\s*{gap.pattern}\s*)" for gap in longest_first)
            self._next[role] = re.compile(pattern), longest_first
        self._day = date.today()

    def _gaps(
        self, roles: Sequence[str], variant: Mapping[str, Any]
    ) -> Iterator[tuple[str | None, _Gap]]:
        """Yield the gaps of a rendered conversation, each with the role before it.

        None stands for the start; after the last text the assistant's answer begins.
        """
        texts = [role for role in roles if role != "call"]
        one, other = (self._between(roles, variant, name) for name in _NAMES)
        # Without a text between two roles their texts cannot be told apart.
        if not one or not all(map(str.strip, one)):
            return
        around = zip([None, *texts], [*texts, "assistant"], one, other, strict=True)
        for role, after, gap, twin in around:
            if "tool" in (role, after):  # A template may write results as JSON.
                gap, twin = gap.strip('"'), twin.strip('"')
            if gap == twin:
                yield role, _Gap(_pattern(gap), after)
                continue
            start = _common(gap, twin)
            end = _common(gap[::-1], twin[::-1])[::-1].lstrip('"}] \n')
            if after == "tool":
                left, right = re.findall(r"\S*\s*$", start)[0][-24:], gap[len(start) + 5 :][:1]
                if left and not left.endswith('"'):
                    self._call = re.compile(rf"{re.escape(left)}([\w.-]+){re.escape(right)}")
                mark = self._special.search(end)
                yield "assistant", _Gap(_pattern(end[mark.start() if mark else 0 :]), after)
            elif tool := _TOOL_START.search(start):
                yield role, _Gap(_pattern(start[: tool.start()]), after, _pattern(end))

    def _between(self, roles: Sequence[str], variant: Mapping[str, Any], name: str) -> list[str]:
        """Return what a template writes around the texts of a conversation; [] if it refuses."""
        texts = [f"probe{number}text" for number in range(len(roles) - roles.count("call"))]
        given = dict(variant)
        if "tools" in variant:
            given = {
                "tools": [
                    _function(
                        name,
                        description=name,
                        parameters={"type": "object", "properties": {}, "required": [name]},
                    )
                ]
            }
        if self._template:
            given["chat_template"] = self._template
        for wrap in (str, lambda text: [{"type": "text", "text": text}]):
            left = iter(texts)
            contents = ("" if role == "call" else wrap(next(left)) for role in roles)
            messages = [_message(*each, name) for each in zip(roles, contents, strict=True)]
            try:
                rendered = self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, **given
                )
            except Exception:  # of any template: it refuses such a conversation
                continue
            between = re.split("|".join(texts), rendered) if isinstance(rendered, str) else []
            if len(between) == len(texts) + 1 and re.findall("|".join(texts), rendered) == texts:
                return [self._first.sub("", between[0], count=1), *between[1:]]
        return []

    def _turns(self, text: str) -> tuple[list[Turn], list[dict[str, Any]]]:
        """Return the turns of a chat and its tools; nothing for other texts."""
        if self._day != date.today():  # a template may print it
            self._learn()
        role: str | None = None
        turns: list[Turn] = []
        tools: list[dict[str, Any]] = []
        start, _ = self._next.get(None, (None, []))
        found = start.match(text) if start is not None else None
        at = 0
        while found is not None:
            if role is not None:
                turns.append(self._turn(role, text[at : found.start()]))
            assert found.lastindex is not None
            gap, at = self._next[role][1][found.lastindex - 1], found.end()
            if gap.end is not None:
                at = _read_tools(text, at, gap.end, tools)
            role, follows = gap.after, self._next.get(gap.after)
            found = follows[0].search(text, at) if follows is not None else None
        if role is not None:
            turns.append(self._turn(role, text[at:]))
        return turns, tools

    def _turn(self, role: str, text: str) -> Turn:
        calls: list[str] = []
        if role == "assistant":
            calls = (
                self._call.findall(text)
                if self._call
                else [
                    name_of(it) for it, *_ in _values(text) if {"arguments", "parameters"} & {*it}
                ]
            )
        elif role == "tool" and text[:1] == text[-1:] == '"':
            text = next((it for it, *_ in _values(text, start='"')), text)
        return Turn(role, self._plain(text), tuple(calls))

    def _plain(self, text: str) -> str:
        return self._special.sub("", text).strip()


def _common(one: str, other: str) -> str:
    """Return the common start of two texts."""
    pairs = zip(one, other, strict=False)
    return "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _pattern(gap: str) -> str:
    """Return the pattern of a gap, with any white space and any id of a call."""
    pattern = r"\s*".join(map(re.escape, gap.split()))
    return pattern.replace(_CALL_ID, r'[^"\s]{0,64}')


def _message(role: str, content: Any, name: str) -> dict[str, Any]:
    if role == "call":
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": _CALL_ID, **_function(name, arguments={name: name})}],
        }
    return {
        "role": role,
        "content": content,
        **({"tool_call_id": _CALL_ID, "name": name} if role == "tool" else {}),
    }


def _function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def _read_tools(text: str, at: int, end: str, tools: list[dict[str, Any]]) -> int:
    """Add the tools that start at a place; return the place of the next text."""
    for tool, start, after in _values(text, at):
        if text[at:start].strip(" \n\t\r,[") or not {"name", "function"} & tool.keys():
            break
        tools.append(tool)
        at = after
    return found.end() if (found := re.compile(rf"[\s\]]*{end}\s*").match(text, at)) else at


def _values(text: str, at: int = 0, start: str = "{") -> Iterator[tuple[Any, int, int]]:
    """Yield the outermost JSON values that start with a character, each with start and end."""
    left = _MOST_BROKEN
    while left and (at := text.find(start, at)) >= 0:
        try:
            found, after = _JSON.raw_decode(text, at)
            yield found, at, after
            at = after
        except (ValueError, RecursionError):
            at, left = at + 1, left - 1
