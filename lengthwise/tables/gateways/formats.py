"""Formats of logged requests: the paths of our columns in the rows of each gateway.

Sources, as read in November 2026:
- OpenAI: platform.openai.com/docs/api-reference; gateways name request and response differently.
- LiteLLM: docs.litellm.ai/docs/proxy/logging_spec, and the rows of LiteLLM_SpendLogs.
- Langfuse: langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields (snake
  case), the public API and the export from the UI (camel case). Langfuse subtracts the details of
  OpenAI's counts from `output`, so the parts are summed again.
- OpenTelemetry: the registry of gen_ai attributes, its names before 1.28, those of OpenLLMetry and
  OpenInference, and of Langfuse's SDK. Input includes cached tokens; output includes reasoning.
- Bedrock: docs.aws.amazon.com/bedrock/latest/userguide/model-invocation-logging.html.
- Helicone: HeliconeRequest of docs.helicone.ai/rest/request/post-v1requestquery-clickhouse.
- Portkey: portkey.ai/docs/product/observability/logs-export, with the names of three years.
- Traces: AzurePublicDataset, HPMLL/BurstGPT, kvcache-ai/Mooncake, and the ShareGPT layout.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from lengthwise.tables.gateways.rewrites import (
    LANGFUSE_KEYS,
    merged_stream,
    with_attributes,
    with_payload,
    with_turns,
    without_cache,
)
from lengthwise.tables.values import first_at

Paths = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class LogFormat:
    """Paths of our columns in a row; the first path with a value counts."""

    name: str
    marks: tuple[Paths, ...] = ()
    """A row of this format has a value at one path of each group."""
    prompt: Paths = ("prompt",)
    output_tokens: Paths = ("output_tokens",)
    prompt_tokens: Paths = ("prompt_tokens",)
    reasoning_tokens: Paths = ()
    total_tokens: Paths = ()
    cached_tokens: Paths = ()
    """Input tokens that may stand beside the prompt."""
    output_parts: Paths = ()
    """All output tokens that may stand beside the output; none: the reasoning."""
    parts_beside: bool = False
    """Parts are added where no total decides."""
    model: Paths = ("model",)
    arrival_s: Paths = ("arrival_s",)
    time_unit: str | None = None
    """Unit of numbers since the start of a trace."""
    request_id: Paths = ()
    finish_reason: Paths = ()
    limit: Paths = ()
    """Largest number of output tokens that the request allowed."""
    choices: Paths = ()
    """Answers in one count: a number or a list."""
    broken: Paths = ()
    """Mark of a stream without its end."""
    answer: Paths = ()
    """Text of the answer, whose tokens a tokenizer counts."""
    answered: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Path -> values of an answered row; a row without the path counts as answered."""
    no_load: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Path -> values of a row that was no load of an engine, such as a hit of a cache."""
    left_out: Paths = ()
    """Reason that a row states for itself, of no request to learn from or to replay."""
    censored: Paths = ()
    """Reason that a row states for a length that is a lower bound."""
    prompt_cut: Paths = ()
    """Mark of a prompt that the logger cut."""
    prepare: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Rewrites a row before its paths are read."""
    without_prompt: str = "a trace of lengths has none; give a log with prompts"
    without_length: str = "log the usage of each response"

    def advice(self, field: str) -> str:
        """Return what gives the rows of this format a field."""
        return self.without_prompt if field == "prompt" else self.without_length


def _under(prefixes: Paths, paths: Paths) -> Paths:
    """Return the paths below each prefix; "" stands for the row itself."""
    return tuple(f"{prefix}.{path}".lstrip(".") for prefix, path in product(prefixes, paths))


_REQUEST: Final = (
    *("request.body", "request", "request_body", "body", "req", "reqPayload", "kwargs"),
    *("providerRequest.json", "input.inputBodyJson", ""),
)
_RESPONSE: Final = (
    *("response.body", "response", "response_body", "resp", "respPayload"),
    *("providerResponse.json", "output.outputBodyJson", "completion", "output", ""),
)
_TIMES: Final = (
    *("arrival_s", "timestamp", "time", "ts", "created_at", "createdAt", "request_time"),
    *("requested_at", "requestedAt", "request_created_at", "start_time", "startTime", "@timestamp"),
)
_ARRIVALS: Final = (
    *("arrival_s", "arrival", "arrival_time", "arrival_time_s", "arrived_at", "timestamp_s"),
    *("timestamp_ms", "arrival_ms", "arrival_time_ms", "TIMESTAMP", "Timestamp", "timestamp"),
)
_LIMITS: Final = (
    *("max_completion_tokens", "max_tokens", "max_output_tokens"),
    *("generationConfig.maxOutputTokens", "inferenceConfig.maxTokens"),
)
_FINISH: Final = (
    *("choices.0.finish_reason", "choices.1.finish_reason", "stop_reason", "stopReason"),
    *("incomplete_details.reason", "candidates.0.finishReason"),
)
CENSORED: Final = frozenset(("length", "max_tokens", "max_output_tokens", "MAX_TOKENS", "LENGTH"))
"""Reasons of an end that is no end of the answer."""
REDACTED: Final = "redacted-by-litellm"
_HIT: Final = ("True", "true", True, "HIT", "hit", 1, "1")
_USAGE_OUT: Final = (
    *("usage.completion_tokens", "usage.output_tokens", "usage.outputTokens"),
    "usageMetadata.candidatesTokenCount",
)
_USAGE_IN: Final = (
    *("usage.prompt_tokens", "usage.input_tokens", "usage.inputTokens"),
    "usageMetadata.promptTokenCount",
)
_USAGE_REASONING: Final = (
    "usage.completion_tokens_details.reasoning_tokens",
    "usage.output_tokens_details.reasoning_tokens",
    *("usage.reasoning_tokens", "usageMetadata.thoughtsTokenCount"),
)
_USAGE_TOTAL: Final = ("usage.total_tokens", "usage.totalTokens", "usageMetadata.totalTokenCount")
_USAGE_CACHED: Final = (
    *("usage.cache_*_input_tokens", "usage.cache*InputTokens"),
    "usageMetadata.toolUsePromptTokenCount",
)


LITELLM: Final = LogFormat(
    name="LiteLLM",
    marks=(("call_type",), ("startTime",), ("completion_tokens",)),
    prompt=("messages", "proxy_server_request", "proxy_server_request.body"),
    prepare=with_payload,
    output_tokens=("completion_tokens",),
    prompt_tokens=("prompt_tokens",),
    reasoning_tokens=(
        "response.usage.completion_tokens_details.reasoning_tokens",
        "metadata.usage_object.completion_tokens_details.reasoning_tokens",
    ),
    total_tokens=("total_tokens",),
    cached_tokens=(
        *("response.usage.cache_*_input_tokens", "metadata.usage_object.cache_*_input_tokens"),
    ),
    model=("model_group", "model"),
    arrival_s=("startTime",),
    request_id=("request_id", "id"),
    finish_reason=_under(("response",), _FINISH),
    limit=_under(
        ("model_parameters", "proxy_server_request", "proxy_server_request.body"), _LIMITS
    ),
    choices=("response.choices", "model_parameters.n", "proxy_server_request.n"),
    # A call that its client left is a success with an error.
    broken=_under(("error_information", "metadata.error_information"), ("error_class",)),
    answered={
        "status": ("success",),
        "call_type": (
            *("completion", "acompletion", "text_completion", "atext_completion"),
            *("responses", "aresponses", "anthropic_messages", "agenerate_content", ""),
            *("generate_content", "agenerate_content_stream", "generate_content_stream"),
            *("pass_through_endpoint", "allm_passthrough_route", "llm_passthrough_route"),
        ),
    },
    no_load={"cache_hit": _HIT},
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
        *("usageDetails.output", "usage_details.output", "usage.output", "outputUsage"),
        *("usage.completionTokens", "completionTokens"),
    ),
    prompt_tokens=(
        *("usageDetails.input", "usage_details.input", "usage.input", "inputUsage"),
        *("usage.promptTokens", "promptTokens"),
    ),
    reasoning_tokens=("usageDetails.output_reasoning*", "usage_details.output_reasoning*"),
    output_parts=("usageDetails.output_*", "usage_details.output_*"),
    cached_tokens=("usageDetails.[ic]*_*", "usage_details.[ic]*_*"),
    total_tokens=("usageDetails.total", "usage_details.total", "usage.total", "totalUsage"),
    parts_beside=True,
    model=("model", "providedModelName", "provided_model_name"),
    arrival_s=("startTime", "start_time"),
    request_id=("id",),
    limit=_under(("modelParameters", "model_parameters"), _LIMITS),
    answered={"type": ("GENERATION",), "level": ("DEBUG", "DEFAULT", "WARNING")},
    without_prompt="export the observations with their input and output",
)
OPENAI: Final = LogFormat(
    name="OpenAI",
    marks=(
        _under(_REQUEST, ("messages", "prompt", "input", "contents")),
        _under(_RESPONSE, ("usage", "usageMetadata", "error", "choices", "outputTokenCount")),
    ),
    prompt=_under(_REQUEST, ("messages", "prompt", "input", "contents")),
    output_tokens=(*_under(_RESPONSE, _USAGE_OUT), "output.outputTokenCount"),
    prompt_tokens=(*_under(_RESPONSE, _USAGE_IN), "input.inputTokenCount"),
    reasoning_tokens=_under(_RESPONSE, _USAGE_REASONING),
    total_tokens=_under(_RESPONSE, _USAGE_TOTAL),
    cached_tokens=_under(_RESPONSE, _USAGE_CACHED),
    model=_under((*_REQUEST, *_RESPONSE), ("model", "modelId", "modelVersion")),
    arrival_s=(*_TIMES, *_under(_REQUEST, _TIMES), *_under(_RESPONSE, ("created", "created_at"))),
    request_id=("request_id", "requestId", "id", *_under(_RESPONSE, ("id",))),
    finish_reason=_under(_RESPONSE, _FINISH),
    limit=_under(_REQUEST, _LIMITS),
    choices=_under(_RESPONSE, ("choices", "candidates")),
    broken=_under(_RESPONSE, ("broken",)),
    answered={
        **dict.fromkeys(("status_code", "response.status_code", "statusCode"), (200, "200")),
        **dict.fromkeys(("error", "response.error", "response.body.error", "errorCode"), ()),
    },
    no_load={
        **dict.fromkeys(("cache_hit", "cacheStatus", "cache_status"), _HIT),
        **dict.fromkeys(_under(_RESPONSE, ("object",)), ("list",)),
        **dict.fromkeys(_under(_RESPONSE, ("status",)), ("failed", "cancelled")),
    },
    prepare=merged_stream,
    without_prompt="let the gateway log the requests",
    without_length="request streamed answers with stream_options.include_usage",
)


_SPAN_ID: Final = ("spanId", "span_id", "context.span_id")
OPENTELEMETRY: Final = LogFormat(
    name="OpenTelemetry",
    marks=(("attributes",), ("startTimeUnixNano", "start_time"), _SPAN_ID),
    prompt=("gen_ai.input.messages", "messages", "gen_ai.prompt", f"{LANGFUSE_KEYS}input"),
    output_tokens=("usage.output", "usage.completion"),
    prompt_tokens=("usage.input", "usage.prompt"),
    reasoning_tokens=("usage.*reasoning*",),
    total_tokens=("usage.total",),
    cached_tokens=("usage.*cache*",),
    model=_under(
        ("gen_ai.request", "gen_ai.response", LANGFUSE_KEYS[:-1]), ("model", "model.name")
    ),
    arrival_s=("startTimeUnixNano", "start_time"),
    request_id=_SPAN_ID,
    finish_reason=("gen_ai.response.finish_reasons", "gen_ai.completion.0.finish_reason"),
    limit=_under(("gen_ai.request", f"{LANGFUSE_KEYS}model.parameters"), _LIMITS),
    choices=("gen_ai.response.finish_reasons", "gen_ai.request.choice.count"),
    left_out=("no_call",),
    answered={
        "gen_ai.operation.name": ("chat", "text_completion", "generate_content"),
        "llm.request.type": ("chat", "completion"),
        "openinference.span.kind": ("LLM",),
        f"{LANGFUSE_KEYS}type": ("generation",),
        f"{LANGFUSE_KEYS}level": LANGFUSE.answered["level"],
        "status.status_code": ("UNSET", "OK"),
        "status.code": (0, 1, "STATUS_CODE_UNSET", "STATUS_CODE_OK"),
        "error.type": (),
    },
    prepare=with_attributes,
    without_prompt="let the instrumentation capture the content of messages",
    without_length="record gen_ai.usage.output_tokens",
)


HELICONE: Final = replace(
    OPENAI,
    name="Helicone",
    marks=(("request_created_at",), ("response_status", "response_id"), ("request_body",)),
    output_tokens=(*OPENAI.output_tokens, "completion_tokens"),
    prompt_tokens=(*OPENAI.prompt_tokens, "prompt_tokens"),
    answered={"response_status": (200, "200")},
    left_out=("no_call",),
    prepare=without_cache,
    without_prompt="export with --include-body",
)
PORTKEY: Final = replace(
    OPENAI,
    name="Portkey",
    marks=(
        *(("created_at",), ("ai_model", "ai_org", "ai_provider", "res_units")),
        ("request", "request.body", "req_units", "request_tokens"),
    ),
    output_tokens=(*OPENAI.output_tokens, "res_units", "response_tokens"),
    prompt_tokens=(*OPENAI.prompt_tokens, "req_units", "request_tokens"),
    total_tokens=(*OPENAI.total_tokens, "total_units", "total_tokens"),
    model=("ai_model",),
    answered={
        "is_success": (1, "1", "true"),
        **dict.fromkeys(("response_status_code", "status_code"), (200, "200")),
    },
    no_load={**OPENAI.no_load, "cache_status": ("HIT", "SEMANTIC HIT")},
    without_prompt="export the fields request and response",
)


_TRACES: Final = (
    LogFormat(
        name="BurstGPT",
        marks=(("Request tokens",), ("Response tokens",), ("Timestamp",)),
        prompt_tokens=("Request tokens",),
        output_tokens=("Response tokens",),
        total_tokens=("Total tokens",),
        model=("Model",),
        arrival_s=("Timestamp",),
        time_unit="s",
    ),
    LogFormat(
        name="Mooncake",
        marks=(("hash_ids",), ("input_length",), ("timestamp",)),
        prompt_tokens=("input_length",),
        output_tokens=("output_length",),
        arrival_s=("timestamp",),
        time_unit="ms",
    ),
    LogFormat(
        name="Azure",
        marks=(("ContextTokens",), ("GeneratedTokens",)),
        prompt_tokens=("ContextTokens",),
        output_tokens=("GeneratedTokens",),
        arrival_s=_ARRIVALS,
        time_unit="s",
    ),
    LogFormat(
        name="ShareGPT",
        marks=(("conversations", "conversation"),),
        prepare=with_turns,
        prompt=("turns.0",),
        answer=("turns.1",),
        request_id=("id",),
        without_length="its answers are texts: count their tokens by --tokenizer (of fit: "
        "--data.tokenizer)",
    ),
)
TABLE: Final = LogFormat(
    name="table",
    prompt_tokens=(
        *("prompt_tokens", "num_prompt_tokens", "num_prefill_tokens", "input_tokens"),
        *("input_length", "input_toks"),
    ),
    output_tokens=(
        *("output_tokens", "num_output_tokens", "num_decode_tokens", "completion_tokens"),
        *("output_length", "output_toks"),
    ),
    reasoning_tokens=("reasoning_tokens",),
    total_tokens=("total_tokens",),
    arrival_s=_ARRIVALS,
    request_id=("request_id",),
    finish_reason=("finish_reason",),
    no_load={"cache_hit": _HIT},
)
"""Columns of a plain table; `arrived_at` of Vidur's traces is in seconds."""
FORMATS: Final = (LITELLM, LANGFUSE, OPENTELEMETRY, HELICONE, PORTKEY, *_TRACES, OPENAI)


def recognise(row: Mapping[str, Any]) -> LogFormat | None:
    """Return the format of a row; None for the row of a plain table."""
    for known in FORMATS:
        own = row if known.prepare is None else known.prepare(row)
        if all(first_at(own, mark) is not None for mark in known.marks):
            return known
    return None
