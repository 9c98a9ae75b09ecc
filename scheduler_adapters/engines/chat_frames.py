"""The texts of a prompt, given as token ids: without the frame that a chat template adds.

The frame is learnt from the template itself. Short conversations are rendered, and what stands
between their texts becomes a pattern: the start of a chat, the end of one role's text and the
start of the next. A prompt that starts as no chat does is one text. Special tokens are left out.
So a prompt has the same text, and the same score, through every endpoint. The names of tools and of
called functions are texts of two more roles. Imports no engine.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any, Final

from lengthwise.conversation import Turn, describe
from lengthwise.tables.prompt_text import CutText, of_chat, scored_text

_PROBES: Final = (
    ("user",),
    ("user", "assistant", "user"),
    ("system", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "tool", "assistant", "user"),
    ("user", "call", "tool", "call", "tool"),
    ("user", "call", "tool", "assistant", "user", "assistant", "call", "tool"),
    ("user", "call", "call", "tool", "tool"),
)
"""Roles of the rendered conversations; a template may refuse some of them. Each is rendered with
the role `tools`, too."""
_VARIANTS: Final[Sequence[dict[str, Any]]] = (
    {},
    {"enable_thinking": False},
    {"enable_thinking": True},
)
"""Arguments of templates that change the end of the frame; others ignore them."""
_CALL_ID, _VALUE = "probecal1", "probevalue"
"""Id of a call, and the last value in its arguments and in the description of a tool."""
_NAME: Final = re.compile(r"^[^\s\"'<>(]+|(?<=\"name\": \")[^\"]+")
_MOST_IDS: Final = 16_384
"""Token ids decoded at each end of a prompt; a ranker reads a few hundred of them."""


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
        segments, is_cut = self._read(ids)
        roles = {"call": "assistant"}
        messages = [{"role": roles.get(r, r), "content": s} for r, s in segments if r != "tools"]
        body = {"messages": messages, "tools": [s for r, s in segments if r == "tools"]}
        found = of_chat(body) if segments[0][0] else scored_text(segments[0][1])
        return CutText(found) if found and is_cut else found

    def description_of(self, ids: Sequence[int]) -> str:
        """Return the text that describes a prompt to rankers of descriptions.

        It is that of the body, as `conversation.of_body` reads it. A prompt that starts as no chat
        does is one message of the user.
        """
        turns, tools, before = list[Turn](), list[str](), ""
        for role, content in self._read(ids)[0]:
            names = tuple(_NAME.findall(content)) if role in ("call", "tools") else ()
            if role == "tools":
                tools += names
            elif role == "call":
                if before not in ("assistant", "call"):
                    turns.append(Turn("assistant"))
                turns[-1] = turns[-1]._replace(calls=(*turns[-1].calls, *names[:1]))
            else:
                turns.append(Turn(role or "user", content))
            before = role
        if turns and turns[-1] == Turn("assistant"):
            turns.pop()  # The answer, which is to come.
        return describe(turns, tools)

    @property
    def is_learnt(self) -> bool:
        """Return False if the model has no chat template, or its texts have no frame."""
        return None in self._next

    def _learn(self) -> None:
        gaps: dict[str | None, dict[str, str]] = {}
        for roles in [*_PROBES, *(("tools", *roles) for roles in _PROBES)]:
            for variant in _VARIANTS:
                for role, gap, after in self._gaps(roles, variant):
                    gaps.setdefault(role, {}).setdefault(gap, after)
        self._next: dict[str | None, tuple[re.Pattern[str], list[str]]] = {}
        for role, found in gaps.items():
            longest_first = sorted(found, key=len, reverse=True)
            pattern = "|".join(rf"(\s*{gap}\s*)" for gap in longest_first)
            self._next[role] = re.compile(pattern), [found[gap] for gap in longest_first]
        self._day = date.today()

    def _gaps(
        self, roles: Sequence[str], variant: Mapping[str, Any]
    ) -> list[tuple[str | None, str, str]]:
        """Return the gaps of a rendered conversation: role before, pattern, and role after.

        None stands for the start; after the last text the assistant's answer begins.
        """
        of = {f"probe{number}text": role for number, role in enumerate(roles)}
        texts = "|".join(of)
        for wrap in (str, lambda text: [{"type": "text", "text": text}]):
            try:
                rendered = self._tokenizer.apply_chat_template(
                    **_conversation(of, wrap),
                    tokenize=False,
                    add_generation_prompt=True,
                    **{"chat_template": self._template} if self._template else {},
                    **variant,
                )
            except Exception:  # of any template: it refuses such a conversation
                continue
            order = re.findall(texts, rendered) if isinstance(rendered, str) else []
            if sorted(order) == sorted(of):  # Tools may stand beside the last message.
                break
        else:
            return []
        places = [*map(of.__getitem__, order), "assistant"]
        first, *others = re.split(texts, rendered)
        between = [self._first.sub("", first, count=1), *others]
        gaps = [
            (role, _pattern(role, gap, after), after)
            for role, gap, after in zip([None, *places[:-1]], between, places, strict=True)
        ]
        # Without a text between two roles their texts cannot be told apart.
        return gaps if all(gap for _, gap, _ in gaps) else []

    def _read(self, ids: Sequence[int]) -> tuple[list[tuple[str, str]], bool]:
        """Return the role and text of each part of a chat, and whether it is cut.

        Any other text is one part without a role.
        """
        if self._day != date.today():  # a template may print it
            self._learn()
        is_cut = len(ids) > 2 * _MOST_IDS
        parts = [ids[:_MOST_IDS], ids[-_MOST_IDS:]] if is_cut else [ids]
        text = " ".join(self._tokenizer.decode(part, skip_special_tokens=False) for part in parts)
        text = self._first.sub("", text, count=1)
        role: str | None = None
        segments: list[tuple[str, str]] = []
        start, _ = self._next.get(None, (None, []))
        found = start.match(text) if start is not None else None
        at = 0
        while found is not None:
            if role is not None:
                segments.append((role, self._plain(text[at : found.start()], role)))
            assert found.lastindex is not None
            role, at = self._next[role][1][found.lastindex - 1], found.end()
            follows = self._next.get(role)
            found = follows[0].search(text, at) if follows is not None else None
        if role is not None:
            segments.append((role, self._plain(text[at:], role)))
        return segments or [("", self._plain(text))], is_cut

    def _plain(self, text: str, role: str = "") -> str:
        if role == "tool" and text[:1] == text[-1:] == '"':  # A template may write them as JSON.
            with suppress(ValueError):
                text = str(json.loads(text))
        return self._special.sub("", text).strip()


def _conversation(of: Mapping[str, str], wrap: Callable[[str], Any]) -> dict[str, Any]:
    """Return messages and tools with these texts as contents and names, by their roles."""
    given: dict[str, Any] = {"conversation": []}
    for text, role in of.items():
        function: dict[str, Any] = {"name": text, "arguments": {_VALUE: _VALUE}}
        if role == "tools":
            parameters = {"type": "object", "properties": {}, "required": [_VALUE]}
            function |= {"description": _VALUE, "parameters": parameters}
            given["tools"] = [{"type": "function", "function": function}]
        elif role == "call":
            last = (given["conversation"] or [{}])[-1]
            if last.get("role") != "assistant":
                last = {"role": "assistant", "content": ""}
                given["conversation"].append(last)
            call = {"id": _CALL_ID, "type": "function", "function": function}
            last["tool_calls"] = [*last.get("tool_calls", ()), call]
        else:
            more = {"tool_call_id": _CALL_ID, "name": "probe"} if role == "tool" else {}
            given["conversation"].append({"role": role, "content": wrap(text), **more})
    return given


def _pattern(role: str | None, gap: str, after: str) -> str:
    """Return the pattern of a gap, with any white space and any id of a call.

    A function's arguments and a tool's description are no part of it.
    """
    if role in ("call", "tools"):
        gap = gap.rpartition(_VALUE)[2].lstrip("\"'}]\n ")
        if not gap:  # The text follows JSON, inside of which other characters follow a brace.
            return r"\}(?=\s*[^\s,\]}{])"
    gap = gap.lstrip('"') if role == "tool" else gap
    gap = gap.rstrip('"') if after == "tool" else gap
    return r"\s*".join(map(re.escape, gap.split())).replace(_CALL_ID, r"[^\"\s]{0,64}")
