"""The description of a request for rankers: one short text with a fixed grammar.

    turn3 step1 calls1 at1 again0 errors0 result2 user4 ... ok | cd | {"cwd": ... | Sort ... | cat

First stand numbers as words, each a name with its class of counts or sizes, and the state of the
last results. After bars follow the last calls, their results, the user's last message, and the
names of the tools. Each is cut to its head and tail. It is made of turns, which hold what a reader
of the rendered prompt can see as well: a role, a text, and the names of the functions that the
assistant calls. Standard library only.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

VERSION: Final = 1
"""Version of the grammar. A bundle names the one that it was trained on."""
_READ: Final = 4096
"""Characters of a text that are looked at."""
_SIZES: Final = (1, 5, 20, 50, 90, 150, 240, 400, 1000, 4000, 16_000)
"""Bounds of the classes of a size, characters."""
_COUNTS: Final = (1, 2, 3, 4, 6, 9, 17, 33)
_ERROR: Final = re.compile(  # The first letters, looked at first, quarter the time.
    r"(?=[cdefintu])(?:\berror|\bfail|not found|invalid|no such|denied|cannot|unable|exception"
    "|traceback)"
)
_SAID: Final = {
    "sentences": re.compile(r"[.!?](?:\s|$)"),
    "joins": re.compile(r"\b(?:and|then|also|after|finally|next|once|additionally)\b", re.I),
    "numbers": re.compile(r"\d+"),
    "quotes": re.compile(r"['\"]"),
    "questions": re.compile(r"\?"),
}
"""Counts in the user's last message."""
_NAME_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_MADE: Final = re.compile(r"turn\d step\d calls\d at\d ")
_ROLES: Final = {"developer": "system", "function": "tool", "model": "assistant"}
_CALLS: Final = {"tool_use", "function_call", "custom_tool_call"}
_RESULTS: Final = {"tool_result", "function_call_output", "custom_tool_call_output"}


class Turn(NamedTuple):
    """One message, or one result of a tool."""

    role: str
    """system, user, assistant or tool."""
    text: str = ""
    calls: tuple[str, ...] = ()
    """Names of the called functions; "" for a call without one."""


def describe(turns: Sequence[Turn], tools: Sequence[str] = ()) -> str:
    """Return the description of turns, oldest first, and of tools by their names.

    Of long texts the head and the tail are read. A tool without a name is "".
    """
    users = [place for place, turn in enumerate(turns) if turn.role == "user"]
    asked = turns[users[-1]].text.strip() if users else ""
    steps: list[tuple[list[str], list[str]]] = []
    """Calls and results of each step since the user's last message."""
    before = ""
    for turn in turns[users[-1] + 1 if users else 0 :]:
        if turn.role == "assistant" != before or not steps:
            steps.append(([], []))
        steps[-1][0].extend(turn.calls)
        steps[-1][1].extend([turn.text.strip()] * (turn.role == "tool"))
        before = turn.role
    calls, results = steps[-1] if steps else ([], [])
    said, got = _ends(asked, _READ), _ends("\n".join(_ends(each, _READ) for each in results), _READ)
    stems = {word[:6] for word in re.findall(r"[a-z]+", said.lower())}
    shares = [_share(name, stems) for name in tools[:256]]
    numbers = {
        "turn": len(users),
        "step": len(steps),
        "calls": sum(len(made) for made, _ in steps),
        "at": len(calls),
        "again": int(len(steps) > 1 and calls == steps[-2][0]),
        "errors": sum(_is_error(each) for _, found in steps for each in found),
        "result": sum(map(len, results)),
        "user": len(asked),
        **{name: len(pattern.findall(said)) for name, pattern in _SAID.items()},
        "tools": len(tools),
        "match": int(4 * max(shares, default=0.0)),
        "named": sum(share >= 0.5 for share in shares),
    }
    is_empty = re.sub(r"\W+", "", got).lower() in ("", "none", "null", "false")
    known = "none" if is_empty else "bad" if _is_error(got) else "ok"
    bounds = {"result": _SIZES, "user": _SIZES}
    words = [f"{name}{bisect_right(bounds.get(name, _COUNTS), n)}" for name, n in numbers.items()]
    whole = zip((" ".join(calls), got, said, " ".join(tools)), (160, 160, 320, 160), strict=True)
    shown = [" ".join(_ends(*each).split()) for each in whole]
    return " | ".join([" ".join([*words, known if results else "new"]), *shown])


def described(request: Any) -> str:
    """Return the text that describes a body, messages, or a bare text of the user.

    A description is returned as it is.
    """
    if isinstance(request, str) and _MADE.match(request):
        return request
    body = request if isinstance(request, dict) else {"messages": request}
    return describe(*(of_body(body) or of_body({"messages": str(body.get("prompt", ""))}) or ([],)))


def of_body(body: Mapping[str, Any]) -> tuple[list[Turn], list[str]] | None:
    """Return the turns and the names of tools in the body of a chat.

    The APIs are /v1/chat/completions, /v1/messages and /v1/responses. None for a body without
    messages. Whatever a body holds, this raises no error: a part without text, such as an image,
    and what is no message are left out.
    """
    given = body.get("messages", body.get("input"))
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list):
        return None
    turns = [turn for each in messages if isinstance(each, Mapping) for turn in _turns(each)]
    tools = body.get("tools") or body.get("functions")
    return turns, list(map(name_of, tools)) if isinstance(tools, list) else []


def name_of(tool: Any) -> str:
    """Return the name of a tool or a call as APIs write it; "" for one without a name."""
    for each in (tool.get("function"), tool) if isinstance(tool, Mapping) else ():
        if isinstance(each, Mapping) and isinstance(name := each.get("name"), str):
            return name
    return ""


def _turns(message: Mapping[str, Any]) -> Iterator[Turn]:
    """Yield the turns of a message: Anthropic's messages of the user also hold results of tools."""
    content, role = message.get("content", message.get("output")), message.get("role")
    parts = [message] if role is None else content if isinstance(content, list) else [content]
    kinds = [str(part.get("type")) if isinstance(part, Mapping) else "" for part in parts]
    calls: list[str] = []
    for part, kind in zip(parts, kinds, strict=True):
        if kind in _RESULTS:
            yield Turn("tool", _text(part.get("content", part.get("output"))))
        elif kind in _CALLS:
            calls.append(name_of(part))
    made = message.get("tool_calls") or message.get("function_call") or []
    calls += map(name_of, made if isinstance(made, list) else [made])
    others = [
        part
        for part, kind in zip(parts, kinds, strict=True)
        if kind not in _CALLS and kind not in _RESULTS
    ]
    if calls or (others and role is not None):
        yield Turn(_ROLES.get(str(role), str(role or "assistant")), _text(others), tuple(calls))


def _text(content: Any) -> str:
    """Return the text of a content; its parts of text are joined by newlines, as vLLM does."""
    texts = [
        each.get("text") if isinstance(each, Mapping) else each
        for each in (content if isinstance(content, list) else [content])
    ]
    return "\n".join(text for text in texts if isinstance(text, str))


def _is_error(result: str) -> bool:
    return _ERROR.search(_ends(result, 400).lower()) is not None


def _share(name: str, stems: set[str]) -> float:
    """Return the part of the words in a tool's name that the user says, by their first letters."""
    parts = {part[:6].lower() for part in _NAME_PARTS.findall(name[:200]) if len(part) > 2}
    return len(parts & stems) / max(1, len(parts))


def _ends(text: str, size: int) -> str:
    """Return a text of about `size` characters at most: two thirds its head, the rest its tail."""
    tail = size // 3
    return text if len(text) <= size else f"{text[: size - tail]} {text[-tail:]}"
