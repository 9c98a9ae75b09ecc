"""OpenAI bodies of completions and chats: what is carried across legs, and what is refused by name.

A field is carried exactly, or the request is refused: a leg begins anew inside its engine, so an
engine's own state, such as counts of tokens for penalties, would be lost with a move.
"""

import reprlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from scheduler_adapters.engines.body_fields import FIELDS
from scheduler_adapters.routers.legs import Leg

Piece = tuple[str, bool]
"""Text of an output, and whether it is reasoning."""


class BadRequest(Exception):
    """Body that is wrong, or that cannot be carried exactly; the field is `param`."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def read_body(
    content: Any, model: str, vocabulary: int, max_tokens: int, *, is_chat: bool
) -> dict[str, Any]:
    """Return the fields of a body without nulls, `stop` as a list, and `max_tokens` if it is set.

    Raises BadRequest: a field is wrong, or cannot be carried. A prompt of ids has at most
    `max_tokens` of them.
    """
    if not isinstance(content, dict):
        raise BadRequest("body", "the body is no JSON object; send one")
    given = {name: value for name, value in content.items() if value is not None}
    prompt = given.get(key := "messages" if is_chat else "prompt")
    if not prompt:
        raise BadRequest(key, f"there is no {key}, or none in it; give one")
    if not is_chat and isinstance(prompt, list) and len(prompt) > max_tokens:
        raise BadRequest("prompt", f"prompt of {len(prompt)} tokens; use 1 to {max_tokens}")
    for name, value in given.items():
        if (one := FIELDS.get(name)) is None:
            raise BadRequest(name, f"{name:.80} is not kept between replicas; leave it out")
        try:
            one.validate_python(value)
        except ValidationError as error:
            found = f"{name} is {reprlib.repr(value)} ({error.errors()[0]['msg']})"
            raise BadRequest(name, f"{found}; correct it") from None
    for name in ("prompt", "stop_token_ids", "logit_bias"):
        ids = given.get(name, ())
        if type(ids) is not str and any(int(token) >= vocabulary for token in ids):
            raise BadRequest(name, f"{name} has ids of no token; use 0 to {vocabulary - 1}")
    if given.get("model", model) != model:
        raise BadRequest("model", f"there is no model {given['model']!r:.80}; use {model!r}")
    if "seed" in given and given.get("temperature", 1) != 0:
        raise BadRequest("seed", "a seed fixes no sampled tokens after a move; leave seed out")
    given["stop"] = [stop] if isinstance(stop := given.get("stop", []), str) else stop
    given["max_tokens"] = given.get("max_completion_tokens", given.get("max_tokens"))
    return given


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
        text, thought = (
            "".join(text for text, is_thought in pieces if is_thought is kind)
            for kind in (False, True)
        )
        reasoning = {"reasoning_content": thought} if thought else {}
        message = {"role": "assistant", "content": text} | reasoning
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
        return {
            "id": f"cmpl-{self.request.request_id}",
            **{"object": kind, "created": self.created, "model": self.model},
            "choices": [{"index": 0, **content, "finish_reason": finish}],
        }


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    kinds = {500: "server_error", 503: "service_unavailable"}
    kind = kinds.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
