"""Formats of logged requests: the paths of our columns in the rows of each gateway.

Sources, as read in November 2026:
- OpenAI: platform.openai.com/docs/api-reference; gateways name request and response differently.
- LiteLLM: docs.litellm.ai/docs/proxy/logging_spec, and the rows of LiteLLM_SpendLogs.
- Langfuse: langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields (snake
  case), the public API and the export from the UI (camel case). Langfuse subtracts the details of
  OpenAI's counts from `output`, so the parts are summed again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.values import count_of, first_at, seconds_of, value_at

Paths = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """Paths of our columns in a row; the first path with a value counts."""

    name: str
    marks: tuple[Paths, ...] = ()
    """A row of this format has a value at one path of each group."""
    prompt: Paths = ("prompt",)
    output_tokens: Paths = ("output_tokens",)
    prompt_tokens: Paths = ("prompt_tokens",)
    reasoning_tokens: Paths = ()
    model: Paths = ("model",)
    arrival_s: Paths = ("arrival_s",)
    answered: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Path -> values of an answered row; a row without the path counts as answered."""
    without_prompt: str = "let the gateway log the requests"
    """Advice about rows without a prompt."""
    without_length: str = "log the usage of each response"
    """Advice about rows without a length."""


def _under(prefixes: Paths, paths: Paths) -> Paths:
    """Return the paths below each prefix; "" stands for the row itself."""
    return tuple(f"{prefix}.{path}".lstrip(".") for prefix, path in product(prefixes, paths))


_REQUEST: Final = (
    *("request.body", "request", "request_body", "body", "req", "reqPayload", "kwargs"),
    *("providerRequest.json", ""),
)
_RESPONSE: Final = (
    *("response.body", "response", "response_body", "resp", "respPayload"),
    *("providerResponse.json", "completion", "output", ""),
)
_TIMES: Final = (
    *("arrival_s", "timestamp", "time", "ts", "created_at", "createdAt", "request_time"),
    *("requested_at", "requestedAt", "start_time", "startTime", "@timestamp"),
)

LITELLM: Final = LogFormat(
    name="LiteLLM",
    marks=(("call_type",), ("startTime",), ("completion_tokens",)),
    prompt=(
        *("messages", "proxy_server_request", "proxy_server_request.body"),
        *("standard_logging_object.messages",),
    ),
    output_tokens=("completion_tokens",),
    prompt_tokens=("prompt_tokens",),
    reasoning_tokens=(
        "response.usage.completion_tokens_details.reasoning_tokens",
        "metadata.usage_object.completion_tokens_details.reasoning_tokens",
    ),
    model=("model_group", "model"),
    arrival_s=("startTime",),
    answered={"status": ("success",)},
    without_prompt="set store_prompts_in_spend_logs: true in LiteLLM's general_settings",
)
LANGFUSE: Final = LogFormat(
    name="Langfuse",
    marks=(
        ("traceId", "trace_id"),
        ("startTime", "start_time"),
        ("usageDetails", "usage_details", "usage", "outputUsage", "completionTokens", "type"),
    ),
    prompt=("input",),
    output_tokens=(
        *("usageDetails.output*", "usage_details.output*", "usage.output", "outputUsage"),
        *("usage.completionTokens", "completionTokens"),
    ),
    prompt_tokens=(
        *("usageDetails.input*", "usage_details.input*", "usage.input", "inputUsage"),
        *("usage.promptTokens", "promptTokens"),
    ),
    reasoning_tokens=("usageDetails.output_reasoning*", "usage_details.output_reasoning*"),
    model=("model", "providedModelName", "provided_model_name"),
    arrival_s=("startTime", "start_time"),
    answered={"type": ("GENERATION",), "level": ("DEBUG", "DEFAULT", "WARNING")},
    without_prompt="export the observations with their input and output",
)
OPENAI: Final = LogFormat(
    name="OpenAI",
    marks=(
        _under(_REQUEST, ("messages", "prompt", "input")),
        _under(_RESPONSE, ("usage", "error", "choices")),
    ),
    prompt=_under(_REQUEST, ("messages", "prompt", "input")),
    output_tokens=_under(_RESPONSE, ("usage.completion_tokens", "usage.output_tokens")),
    prompt_tokens=_under(_RESPONSE, ("usage.prompt_tokens", "usage.input_tokens")),
    reasoning_tokens=_under(
        _RESPONSE,
        (
            "usage.completion_tokens_details.reasoning_tokens",
            "usage.output_tokens_details.reasoning_tokens",
        ),
    ),
    model=_under((*_REQUEST, *_RESPONSE), ("model",)),
    arrival_s=(
        *_TIMES,
        *_under(_REQUEST, _TIMES),
        *_under(_RESPONSE, ("created", "created_at")),
    ),
    answered={
        **dict.fromkeys(("status_code", "response.status_code", "statusCode"), (200, "200")),
        **dict.fromkeys(("error", "response.error", "response.body.error"), ()),
    },
    without_length="request streamed answers with stream_options.include_usage",
)
FORMATS: Final = (LITELLM, LANGFUSE, OPENAI)


def recognise(row: Mapping[str, Any]) -> LogFormat | None:
    """Return the format of a row; None for the row of a plain table."""
    for known in FORMATS:
        if all(first_at(row, mark) is not None for mark in known.marks):
            return known
    return None


def standard_row(row: Mapping[str, Any], known: LogFormat) -> dict[str, Any]:
    """Return a row under our names, with None for missing values."""
    prompts = (prompt_of(value_at(row, path)) for path in known.prompt)
    return {
        "prompt": next((text for text in prompts if text is not None), None),
        "output_tokens": count_of(first_at(row, known.output_tokens)),
        "prompt_tokens": count_of(first_at(row, known.prompt_tokens)),
        "reasoning_tokens": count_of(first_at(row, known.reasoning_tokens)),
        "model": first_at(row, known.model),
        "arrival_s": seconds_of(first_at(row, known.arrival_s)),
    }


def unanswered(row: Mapping[str, Any], known: LogFormat) -> str | None:
    """Return the reason why a row holds no answer of a model; None for an answered row."""
    for path, right in known.answered.items():
        value = value_at(row, path)
        if value is not None and value not in right:
            return f"{path} is {str(value)[:40]!r}" if right else f"it has {path}"
    return None
