"""The body of a request -> its turns, in one form for every API of chats. Standard library only.

A turn holds what a reader of the rendered prompt can see as well: a role, a text, and the names of
the functions that the assistant calls.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

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


class Conversation(NamedTuple):
    """The turns of a request, oldest first, and the names of its tools."""

    turns: Sequence[Turn]
    tools: Sequence[str] = ()
    """"" for a tool without a name."""


def of_body(body: Mapping[str, Any]) -> Conversation | None:
    """Return the conversation in a body of /v1/chat/completions, /v1/messages or /v1/responses.

    None for a body without messages. Whatever a body holds, this raises no error: a part without
    text, such as an image, and what is no message are left out.
    """
    given = body.get("messages", body.get("input"))
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list):
        return None
    turns = [turn for each in messages if isinstance(each, Mapping) for turn in _turns(each)]
    tools = body.get("tools") or body.get("functions")
    return Conversation(turns, [*map(name_of, tools)] if isinstance(tools, list) else [])


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
