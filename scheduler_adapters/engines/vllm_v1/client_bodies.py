"""Bodies of requests to vLLM's server: the place of the prompt, of hints and of operators' fields.

`SCORED` and `UNSCORED` list the generation endpoints of vLLM 0.32. A request is scored by all its
texts (`prompt_text.py`). Prompts of one request share their parameters, so they share one score,
the highest. Token ids are not scored, nor are more than `MOST_PROMPTS` prompts. Hints stand in
`vllm_xargs`, at `GENERATE` in `sampling_params.extra_args`. What only an operator may set
stands there or in the body itself. Imports no engine.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lengthwise.tables import prompt_text
from scheduler_adapters.planner import request_annotations as hints

XARGS: Final = "vllm_xargs"
PRIORITY: Final = "priority"
OPERATORS: Final = frozenset({PRIORITY, "kv_transfer_params", "ec_transfer_params"})
"""Fields for an operator's own gateways: the order of all clients' requests, and the peers from
which an engine pulls KV and encoder caches."""
BEAMS: Final = "use_beam_search"
"""Field of a search that makes requests without `vllm_xargs`."""
HINT_HEADERS: Final = frozenset({b"x-vllm-priority", b"x-data-parallel-rank"})
"""Headers for a priority, which overrides that of the body, and for the choice of an engine."""
GENERATE: Final = "/inference/v1/generate"
MOST_PROMPTS: Final = 16
"""Most prompts of a scored request; each takes the time of a request of its own."""
Prompts = tuple[str, ...]


def _texts(given: Any, text_of: Callable[[Any], str | None]) -> Prompts:
    """Return the prompts' texts if none is missing and they are not too many, else nothing."""
    prompts = given if isinstance(given, list) else [given]
    found = [text for one in prompts[: MOST_PROMPTS + 1] if (text := text_of(one)) is not None]
    return tuple(found) if len(found) == len(prompts) <= MOST_PROMPTS else ()


def _of_completion(body: Mapping[str, Any]) -> Prompts:
    return _texts(body.get("prompt"), prompt_text.scored_text)


def _of_chat(body: Mapping[str, Any]) -> Prompts:
    return _texts(body, prompt_text.of_chat)


SCORED: Final[Mapping[str, tuple[Callable[[Mapping[str, Any]], Prompts], tuple[str, ...]]]] = {
    "/v1/completions": (_of_completion, ()),
    "/v1/chat/completions": (_of_chat, ("messages",)),
    "/v1/chat/completions/batch": (
        lambda body: _texts(
            body.get("messages"), lambda one: prompt_text.of_chat({"messages": one})
        ),
        ("messages",),
    ),
    "/v1/messages": (_of_chat, ("messages",)),
    "/v1/responses": (lambda body: _texts(body, prompt_text.of_response), ("input",)),
    "/invocations": (
        lambda body: (_of_chat if "messages" in body else _of_completion)(body),
        ("messages", "prompt"),
    ),
    GENERATE: (lambda body: (), ("sampling_params",)),
}
"""Endpoint -> its prompts (none without readable text), and fields of which a body must have one:
for a body without them vLLM answers with its number of fields."""
UNSCORED: Final = frozenset({
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"),
    *("/v1/systemone", "/generative_scoring", "/cohere/v2/chat"),
})  # fmt: skip
"""Generation endpoints whose requests are only counted."""
GUARDED: Final = "/v1"
"""Start of the paths at which every vLLM with API keys requires one."""
_IN_FORMS: Final = (hints.HINT_START, "_transfer_params")
_ASCII_ESCAPE: Final = re.compile(rb"\\u00[2-7]")
_IN_FORM: Final = re.compile(
    "|".join(
        "".join(rf"(?:{char}|\\u00{ord(char):02x})" for char in word) for word in _IN_FORMS
    ).encode(),
    re.IGNORECASE,
)
_OBJECT: Final = re.compile(rb"[ \t\r\n]*\{(?=[ \t\r\n]*\")")
_QUOTED: Final = [f'"{name}"' for name in (*sorted(OPERATORS), XARGS, BEAMS)]
_SPECIAL: Final = [word.encode() for word in (hints.HINT_START, *_QUOTED)]
_IDS: Final = re.compile(rb"\"prompt\"\s*:\s*\[\s*[\[\d]")
_LARGE: Final = 1 << 18
"""Bytes of a body whose parsing takes milliseconds of the event loop."""


def media_type(content_type: bytes) -> bytes:
    """Return the media type in a header without its parameters."""
    return content_type.partition(b";")[0].strip().lower()


def form_may_hold_hints(content_type: bytes, content: bytes) -> bool:
    """Return whether a form holds hints or a transfer, or declares an encoding of its own."""
    if b"charset" in content_type.lower():
        return True
    is_likely = any(word.encode() in content for word in _IN_FORMS) or _ASCII_ESCAPE.search(content)
    return bool(is_likely and _IN_FORM.search(content))


def is_plain(content: bytes, path: str, required: tuple[str, ...]) -> bool:
    """Return whether a body, unparsed, holds nothing that is dropped, and takes hints of ours."""
    if required and not any([f'"{name}"'.encode() in content for name in required]):
        return False
    if path == GENERATE or b"\0" in content or not _OBJECT.match(content):
        return False  # in UTF-16 and UTF-32 there are zeros
    is_escaped = b"\\u00" in content and _ASCII_ESCAPE.search(content)
    return not is_escaped and not any([word in content for word in _SPECIAL])


def has_many_ids(content: bytes) -> bool:
    """Return whether a large body, unparsed, has token ids in the place of its prompt."""
    return len(content) > _LARGE and _IDS.search(content) is not None


def parse(content: bytes, required: tuple[str, ...] = ()) -> dict[str, Any] | None:
    """Return a body as an object; None for a malformed one, which vLLM will refuse."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or (required and not body.keys() & set(required)):
        return None
    if "sampling_params" in required and not isinstance(body.get("sampling_params"), dict):
        return None
    return body if all(each is None or isinstance(each, dict) for each in _places(body)) else None


def held(body: Mapping[str, Any]) -> set[str]:
    """Return the names of the hints and of the operators' fields in a body, in every place."""
    keys = {key for carrier in _carriers(body) for key in carrier}
    return (keys & (hints.FROM_CLIENTS | OPERATORS)) | {
        name for name in OPERATORS if body.get(name) not in (None, 0)
    }


def drop(body: dict[str, Any], names: Iterable[str]) -> bool:
    """Remove these and what only we set, in every place; return whether there was one."""
    dropped = {*names, hints.CLIENT, hints.LIMITS, hints.REQUEST_KEY}
    found = [(carrier, key) for carrier in _carriers(body) for key in carrier.keys() & dropped]
    found += [(body, name) for name in dropped & OPERATORS if body.get(name) not in (None, 0)]
    if hints.HINT_START in str(body.get("request_id")):  # a form that is ours
        found.append((body, "request_id"))
    for place, key in found:
        del place[key]
    return bool(found)


def attached(
    content: bytes, body: dict[str, Any], added: Mapping[str, Any], path: str, *, is_changed: bool
) -> bytes:
    """Return the bytes of a body with the hints that it lacks at its endpoint's place."""
    start = _OBJECT.match(content)
    if added and start and not is_changed and path != GENERATE and XARGS not in body:
        ours, at = json.dumps({XARGS: added})[1:-1].encode(), start.end()
        return content[:at] + ours + b"," + content[at:]
    holder, name = (body["sampling_params"], "extra_args") if path == GENERATE else (body, XARGS)
    carried = holder.get(name) or {}
    if new := {key: value for key, value in added.items() if key not in carried}:
        holder[name] = carried | new
    return json.dumps(body).encode() if new or is_changed else content


def _places(body: Mapping[str, Any]) -> list[Any]:
    params = body.get("sampling_params")
    return [body.get(XARGS), params.get("extra_args") if isinstance(params, dict) else None]


def _carriers(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in _places(body) if isinstance(each, dict)]
