"""Fields of a body that reach an engine through the gateway on Ray: their types and ranges.

The gateway makes the engine's input itself, so it refuses every other field and value. Behind
`serve-vllm` and the endpoint picker, vLLM's own server checks fields; what only an operator may set
is in `client_bodies.OPERATORS`. Imports no engine.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict


@with_config(ConfigDict(strict=True, extra="allow"))
class ChatMessage(TypedDict):
    """A message of a chat."""

    role: str
    content: str


def _list(kind: Any, **limits: Any) -> Any:
    return Annotated[list[kind], Field(fail_fast=True, **limits)]


def _int(least: int, most: int = 2**63 - 1) -> Any:
    return Annotated[int, Field(ge=least, le=most)]


def _float(least: float, most: float) -> Any:
    return Annotated[float, Field(ge=least, le=most)]


# Stop strings and ids are looked at for each token.
_STOP: Final[Any] = Annotated[str, Field(min_length=1, max_length=256)]
_ID: Final[Any] = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
_BIAS: Final[Any] = _float(-100, 100)
_BIASES: Final[Any] = Annotated[dict[_ID, _BIAS], Field(max_length=1024)]
SAMPLING: Final = {
    **{"temperature": _float(0, 2), "top_p": _float(1e-9, 1), "min_p": _float(0, 1)},
    **{"top_k": _int(-1), "repetition_penalty": _float(1e-6, 100), "min_tokens": _int(0)},
    **{"seed": _int(-(2**63)), "ignore_eos": bool, "logit_bias": _BIASES},
}
"""Fields that the gateway sends in each leg, as they mean the same in all of them."""
_GATEWAYS: Final = {
    **{"model": str, "prompt": str | _list(_int(0)), "messages": _list(ChatMessage)},
    **{"max_tokens": _int(1), "max_completion_tokens": _int(1), "n": _int(1, 1)},
    **{"stop": _STOP | _list(_STOP, max_length=16), "stream": bool, "stream_options": dict},
    **{"stop_token_ids": _list(_int(0), max_length=1024), "chat_template_kwargs": dict},
    **{"user": str, "metadata": dict},
}
_USUAL: Final = {
    **{"best_of": _int(1, 1), "echo": Literal[False], "suffix": Literal[""]},
    **{"logprobs": Literal[False], "top_logprobs": _int(0, 0), "tool_choice": Literal["none"]},
    **{"presence_penalty": _float(0, 0), "frequency_penalty": _float(0, 0)},
    **{"tools": _list(Any, max_length=0), "response_format": dict[Literal["type"], Literal["text"]]}
}  # fmt: skip
FIELDS: Final[dict[str, TypeAdapter[Any]]] = {
    name: TypeAdapter(kind, config=ConfigDict(strict=True, allow_inf_nan=False))
    for name, kind in (SAMPLING | _GATEWAYS | _USUAL).items()
}
"""Fields that the gateway accepts: those of engines, its own, and with their usual value others."""
