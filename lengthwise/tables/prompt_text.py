"""The prompt of a request, its normal form, and the text of a whole request that a ranker scores.

A ranker learns from single prompts, so the prompt in a log is the user's newest message. A served
request is scored by all its texts. The user's newest message stands first, then the system's texts,
the other turns and results of tools in order, and last tools and documents.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from unicodedata import normalize

from lengthwise.conversation import described
from lengthwise.tables.gateways import WORDS
from lengthwise.tables.values import unpacked

MAX_CHARACTERS: Final = 16_384
"""Longest text that is sent to a ranker, which reads a few hundred tokens of it."""
_BLANKS_READ: Final = 8
"""Characters that are read for one that is kept; the others may be blanks."""
_MOST_BLANKS: Final = 16
"""Blanks in a row that are kept: an empty line and an indentation, parts of an emoji."""
_BLANKS: Final = re.compile(f"[{''.join(WORDS['blank'])}]{{{_MOST_BLANKS + 1},}}")
_STYLED: Final = re.compile(
    r"[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\u24b6-\u24e9\U0001d400-\U0001d7ff]"
)
"""Latin letters and digits in another style, which are unknown tokens."""
# A WordPiece tokenizer reads a word of more than 100 letters as one unknown token.
_LONG_WORD: Final = re.compile(r"[^\W\u3040-\u9fff]{64}(?=\w)")
_SPELLED: Final = re.compile(r"(?:(?<!\w)[^\W\d_][\W_]{1,3}(?!\w\w)){16}")
"""Sixteen letters with spaces or signs between them, which hide the words of a task."""
_INSTRUCTIONS, _KEPT_ELSEWHERE = (
    ("system", "instructions"),
    ("previous_response_id", "conversation"),
)
_MORE: Final = ("tools", "functions", "documents", "chat_template", "chat_template_kwargs")
_NO_TEXT: Final = frozenset(WORDS["no_text"])


class RequestText(str):
    """A text of a request, with the request's body, or the description of it."""

    body: Any = None

    @property
    def description(self) -> str:
        """Return what rankers of descriptions read of the request; "" if the body is unknown."""
        return described(self.body) if self.body else ""


class CutText(RequestText):
    """A text of which the request holds more than is sent to the ranker, or than it can read."""


def normalised(prompt: str) -> str:
    """Return the prompt in lower case with single spaces; equal results mean the same prompt."""
    return " ".join(prompt.lower().split())


def prompt_of(value: Any) -> str | None:
    """Return the prompt in a cell of a table or log; None without text.

    A cell holds a text, messages, or the body of a request, each also as JSON.
    """
    if type(value) is str and value[:1].isalnum():
        return value
    inner = whole = unpacked(value)
    if isinstance(inner, Mapping):
        if inner.get("role") is not None:
            inner = [inner]
        else:
            keys = WORDS["bodies"] + WORDS["objects"] * (not isinstance(value, str))
            found = (prompt_of(inner.get(key)) for key in keys)
            inner = next((text for text in found if text), None)
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        only_text = inner[0] if len(inner) == 1 and isinstance(inner[0], str) else None
        inner = (_newest(inner)[1] or "")[:MAX_CHARACTERS] or only_text
    # Text that holds some other JSON is a prompt itself, unless that JSON is empty.
    for text in (inner, None if whole in ({}, []) else value):
        if isinstance(text, str) and text.strip():
            return text
    return None


def of_chat(body: Mapping[str, Any]) -> str | None:
    """Return the text of a /v1/chat/completions or /v1/messages body; None as `of_response`."""
    messages = body.get("messages")
    return _of(_of_turns(messages, body), body) if isinstance(messages, list) else None


def of_response(body: Mapping[str, Any]) -> str | None:
    """Return the text of a /v1/responses body; None without text in the user's newest message."""
    given = body.get("input")
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else given
    found = _of_turns(turns, body) if isinstance(turns, list) else None
    # Turns that the server keeps are hidden.
    is_cut = any(map(body.get, ("previous_response_id", "conversation")))
    return _of(CutText(found) if found and is_cut else found, body)


def _of(text: str | None, body: Mapping[str, Any]) -> RequestText | None:
    if text is None:
        return None
    found = (CutText if isinstance(text, CutText) else RequestText)(text)
    found.body = body
    return found


def _of_turns(turns: Sequence[Any], body: Mapping[str, Any]) -> str | None:
    newest, text = _newest(turns)
    if newest is None or not text:
        return None
    system: list[str] = []
    others = [part for part in _texts(newest.get("content")) if part not in text]
    for turn in turns:
        if turn is not newest:
            role = turn.get("role") if isinstance(turn, Mapping) else None
            (system if role in ("system", "developer") else others).extend(_texts(turn))
    first, last = (_texts([body.get(name) for name in names]) for names in (_INSTRUCTIONS, _MORE))
    return scored_text("\n\n".join((text, *first, *system, *others, *last)))


def _texts(value: Any) -> list[str]:
    """Return the texts in a JSON value, in order."""
    found, left = [], [value]
    while left:
        if isinstance(value := left.pop(), str):
            found.append(value)
        elif isinstance(value, Mapping):
            left += [each for key, each in reversed([*value.items()]) if not _is_name(key, each)]
        elif isinstance(value, list):
            left += reversed(value)
    return [text for text in found if text]


def _is_name(key: str, value: Any) -> bool:
    return key in _NO_TEXT and isinstance(value, str) and len(value.split(None, 1)) < 2


def scored_text(prompt: object) -> str | None:
    """Return the part of a text that is sent to the ranker; None for an empty or no text."""
    return shortened(prompt, MAX_CHARACTERS) if isinstance(prompt, str) and prompt else None


def shortened(text: str, size: int) -> str:
    """Return a text of about `size` characters at most.

    Runs of blanks are shortened, words without an end split, styled letters made plain. What is cut
    is cut from the middle: then the result is a `CutText`, as is a text with words in single
    letters. Other texts are returned as they are.
    """
    most = _BLANKS_READ * size
    folded = _LONG_WORD.sub(r"\g<0> ", _BLANKS.sub(" ", _ends(text, most)))
    if not folded.isascii():
        folded = _STYLED.sub(lambda found: normalize("NFKC", found[0]), folded)
    is_cut = isinstance(text, CutText) or len(text) > most or len(folded) > size + 1
    is_cut = is_cut or _SPELLED.search(folded) is not None
    return CutText(_ends(folded, size)) if is_cut else folded


def _ends(text: str, size: int) -> str:
    half = size // 2
    return text if len(text) <= size + 1 else f"{text[:half]} {text[len(text) - half :]}"


def _newest(messages: Sequence[Any]) -> tuple[Mapping[str, Any] | None, str | None]:
    """Return the user's newest message and its text.

    Results of tools do not count, which Anthropic, Bedrock and Gemini write as messages of the
    user. The text of a message is its content, or its parts (Gemini, OpenTelemetry).
    """
    for message in reversed(messages):
        turn = _turn(message)
        if isinstance(message, list) and (found := _newest(message)) != (None, None):
            return found
        if str(turn.get("role")).lower() in WORDS["users"]:
            content = turn.get("content", turn.get("parts"))
            if not isinstance(content, list):
                return turn, content if isinstance(content, str) else None
            parts = [part if isinstance(part, Mapping) else {"text": part} for part in content]
            kinds = [{str(part.get("type")), *part} for part in parts]
            if not parts or any(map(set(WORDS["tool_results"]).isdisjoint, kinds)):
                texts = [part.get("text", part.get("content")) for part in parts]
                return turn, "\n".join(text for text in texts if isinstance(text, str))
    return None, None


def _turn(message: Any) -> Mapping[str, Any]:
    """Return a message with its role, also of LangChain (kwargs, data) and OpenInference."""
    turn: Mapping[str, Any] = message if isinstance(message, Mapping) else {"role": ""}
    if turn.get("role") is not None:
        return turn
    inners = [turn.get(key) for key in ("kwargs", "data", "message")]
    inner = next((each for each in inners if isinstance(each, Mapping)), turn)
    names = turn.get("id")
    kinds = [inner.get("role"), inner.get("type"), inner.get("message.role")]
    kinds += names[-1:] if isinstance(names, list) else [turn.get("type")]
    content = inner.get("content", inner.get("message.content"))
    return {"role": next(filter(None, kinds), None), "content": content}
