"""The texts of a prompt, given as token ids: without the frame that a chat template adds.

The frame is learnt from the template itself. Short conversations are rendered, and what stands
between their texts becomes a pattern: the start of a chat, the end of one role's text and the
start of the next. A prompt that starts as no chat does is one text. Special tokens are left out.
So a prompt has the same text, and the same score, through every endpoint. Imports no engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final

from lengthwise.tables.prompt_text import CutText, of_chat, scored_text

_PROBES: Final = (
    ("user",),
    ("user", "assistant", "user"),
    ("system", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "tool", "assistant", "user"),
)
"""Roles of the rendered conversations; a template may refuse some of them."""
_VARIANTS: Final[Sequence[dict[str, Any]]] = (
    {},
    {"enable_thinking": False},
    {"enable_thinking": True},
)
"""Arguments of templates that change the end of the frame; others ignore them."""
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
        if self._day != date.today():  # a template may print it
            self._learn()
        is_cut = len(ids) > 2 * _MOST_IDS
        parts = [ids[:_MOST_IDS], ids[-_MOST_IDS:]] if is_cut else [ids]
        text = " ".join(self._tokenizer.decode(part, skip_special_tokens=False) for part in parts)
        text = self._first.sub("", text, count=1)
        messages = self._messages(text)
        found = of_chat({"messages": messages}) if messages else scored_text(self._plain(text))
        return CutText(found) if found and is_cut else found

    @property
    def is_learnt(self) -> bool:
        """Return False if the model has no chat template, or its texts have no frame."""
        return None in self._next

    def _learn(self) -> None:
        gaps: dict[str | None, dict[str, str]] = {}
        for roles in _PROBES:
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
        texts = [f"probe{number}text" for number in range(len(roles))]
        for wrap in (str, lambda text: [{"type": "text", "text": text}]):
            messages = [
                {"role": role, "content": wrap(text)}
                for role, text in zip(roles, texts, strict=True)
            ]
            try:
                rendered = self._tokenizer.apply_chat_template(
                    messages,
                    tokenize=False,
                    add_generation_prompt=True,
                    **{"chat_template": self._template} if self._template else {},
                    **variant,
                )
            except Exception:  # of any template: it refuses such a conversation
                continue
            between = re.split("|".join(texts), rendered) if isinstance(rendered, str) else []
            if len(between) == len(texts) + 1 and re.findall("|".join(texts), rendered) == texts:
                break
        else:
            return []
        between[0] = self._first.sub("", between[0], count=1)
        patterns = [r"\s*".join(map(re.escape, gap.split())) for gap in between]
        # Without a text between two roles their texts cannot be told apart.
        if not all(patterns):
            return []
        return list(zip([None, *roles], patterns, [*roles, "assistant"], strict=True))

    def _messages(self, text: str) -> list[dict[str, str]]:
        """Return the turns of a chat; nothing for other texts."""
        role: str | None = None
        turns: list[dict[str, str]] = []
        start, _ = self._next.get(None, (None, []))
        found = start.match(text) if start is not None else None
        at = 0
        while found is not None:
            if role is not None:
                turns.append({"role": role, "content": self._plain(text[at : found.start()])})
            assert found.lastindex is not None
            role, at = self._next[role][1][found.lastindex - 1], found.end()
            follows = self._next.get(role)
            found = follows[0].search(text, at) if follows is not None else None
        if role is not None:
            turns.append({"role": role, "content": self._plain(text[at:])})
        return turns

    def _plain(self, text: str) -> str:
        return self._special.sub("", text).strip()
