"""OpenAI bodies of completions and chats: what is carried across legs, and what is refused by name.

A field is carried exactly, or the request is refused: a leg begins anew inside its engine, so an
engine's own state, such as counts of tokens for penalties, would be lost with a move.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler_adapters.routers.legs import Leg

Piece = tuple[str, bool]
"""Text of an output, and whether it is reasoning."""
_Kind = type | tuple[type, ...]
SAMPLING: Final[Mapping[str, _Kind]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), (int, float)),
    **{"top_k": int, "min_tokens": int, "seed": int, "logit_bias": dict, "ignore_eos": bool},
}
"""Fields for the engine that mean the same in every leg."""
_OWN: Final[Mapping[str, _Kind]] = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "n"), int),
    **{"model": str, "prompt": (str, list), "messages": list, "stop": (str, list)},
    **{"stop_token_ids": list, "stream": bool, "stream_options": dict, "user": str},
    **{"chat_template_kwargs": dict, "metadata": dict},
}
"""Fields for the gateway."""
_NEUTRAL: Final[Mapping[str, Sequence[Any]]] = {
    **{"best_of": (1,), "echo": (False,), "suffix": ("",), "logprobs": (False,)},
    **dict.fromkeys(("top_logprobs", "presence_penalty", "frequency_penalty"), (0,)),
    **{"tools": ([],), "tool_choice": ("none",), "response_format": ({"type": "text"},)},
}
"""Fields with the values that have no effect; others cannot be carried."""


class BadRequest(Exception):
    """Body that is wrong, or that cannot be carried exactly; the field is `param`."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def read_body(content: Any, *, is_chat: bool, model: str) -> dict[str, Any]:
    """Return the fields of a body without nulls, `stop` as a list, and `max_tokens` if it is set.

    Raises BadRequest: a field is wrong, or cannot be carried.
    """
    if not isinstance(content, dict):
        raise BadRequest("body", "the body is no JSON object; send one")
    given = {name: value for name, value in content.items() if value is not None}
    kinds = {**SAMPLING, **_OWN}
    wrong = [name for name in given.keys() & kinds if not isinstance(given[name], kinds[name])]
    wrong += [name for name in given.keys() - kinds if given[name] not in _NEUTRAL.get(name, ())]
    if not wrong:
        stop = given.get("stop", [])
        given["stop"] = [stop] if isinstance(stop, str) else stop
        given["max_tokens"] = given.get("max_completion_tokens", given.get("max_tokens"))
        wrong = [name for name, holds in _checks(given, is_chat, model) if not holds]
    if wrong:
        found = f"{wrong[0]} is {content.get(wrong[0])!r}, wrong or not kept between replicas"
        raise BadRequest(wrong[0], f"{found}; correct it, or leave it out")
    return given


def _checks(given: Mapping[str, Any], is_chat: bool, model: str) -> Iterator[tuple[str, bool]]:
    prompt = given.get(key := "messages" if is_chat else "prompt", "")
    is_text = isinstance(prompt, str) or all(type(token) is int for token in prompt)
    has_texts = all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in prompt)
    yield key, bool(prompt) and (has_texts if is_chat else is_text)
    yield "model", given.get("model", model) == model
    yield "n", given.get("n", 1) == 1
    # A seed fixes no sampled tokens after a move.
    yield "seed", "seed" not in given or given.get("temperature", 1) == 0
    yield "max_tokens", given["max_tokens"] is None or given["max_tokens"] > 0
    yield "stop", all(isinstance(text, str) and text for text in given["stop"])
    yield "stop_token_ids", all(type(token) is int for token in given.get("stop_token_ids", ()))


@dataclass(slots=True)
class Writer:
    """Answers to one request in OpenAI's form."""

    given: Mapping[str, Any]
    is_chat: bool
    request: Leg
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, piece: Piece, finish: str | None = None) -> dict[str, Any]:
        """Return one chunk of a stream."""
        text, is_reasoning = piece
        if not self.is_chat:
            return self._answer({"text": text}, finish, "text_completion")
        key = "reasoning_content" if is_reasoning else "content"
        delta = {"role": "assistant"} | ({key: text} if text else {})
        return self._answer({"delta": delta}, finish, "chat.completion.chunk")

    def end(self) -> list[dict[str, Any]]:
        """Return the last chunks of a stream: the reason of the end, and the usage if requested."""
        last = self.chunk(("", False), self.request.finish)
        has_usage = self.given.get("stream_options", {}).get("include_usage")
        return [last, last | {"choices": [], "usage": self.usage()}] if has_usage else [last]

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the answer to a request without a stream."""
        text = "".join(text for text, is_reasoning in pieces if not is_reasoning)
        thought = "".join(text for text, is_reasoning in pieces if is_reasoning)
        message = {"role": "assistant", "content": text} | (
            {"reasoning_content": thought} if thought else {}
        )
        content = {"message": message} if self.is_chat else {"text": text}
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self._answer(content, self.request.finish, kind) | {"usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Return the usage: all legs as one."""
        one = self.request
        return {
            "prompt_tokens": one.prompt_tokens,
            "completion_tokens": one.generated_tokens,
            "total_tokens": len(one.token_ids),
            "completion_tokens_details": {"reasoning_tokens": one.thinking_tokens},
        }

    def _answer(self, content: Mapping[str, Any], finish: str | None, kind: str) -> dict[str, Any]:
        head = {"id": f"cmpl-{self.request.request_id}", "object": kind}
        choice = {"index": 0, **content, "finish_reason": finish}
        return {**head, "created": self.created, "model": self.model, "choices": [choice]}


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "service_unavailable"
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
