from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoreRequest(_message.Message):
    __slots__ = ("prompt", "target_model", "description")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODEL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    target_model: str
    description: str
    def __init__(self, prompt: _Optional[str] = ..., target_model: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scored", "revision", "timings")
    SCORED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    scored: ScoredPrompt
    revision: str
    timings: StageTimings
    def __init__(self, scored: _Optional[_Union[ScoredPrompt, _Mapping]] = ..., revision: _Optional[str] = ..., timings: _Optional[_Union[StageTimings, _Mapping]] = ...) -> None: ...

class ScoreBatchRequest(_message.Message):
    __slots__ = ("prompts", "target_model", "descriptions")
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODEL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.RepeatedScalarFieldContainer[str]
    target_model: str
    descriptions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, prompts: _Optional[_Iterable[str]] = ..., target_model: _Optional[str] = ..., descriptions: _Optional[_Iterable[str]] = ...) -> None: ...

class ScoreBatchResponse(_message.Message):
    __slots__ = ("items", "revision", "timings")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ItemResult]
    revision: str
    timings: StageTimings
    def __init__(self, items: _Optional[_Iterable[_Union[ItemResult, _Mapping]]] = ..., revision: _Optional[str] = ..., timings: _Optional[_Union[StageTimings, _Mapping]] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("observations",)
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    observations: _containers.RepeatedCompositeFieldContainer[Observation]
    def __init__(self, observations: _Optional[_Iterable[_Union[Observation, _Mapping]]] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("target_model", "output_tokens", "score", "revision", "prompt")
    TARGET_MODEL_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    target_model: str
    output_tokens: int
    score: float
    revision: str
    prompt: str
    def __init__(self, target_model: _Optional[str] = ..., output_tokens: _Optional[int] = ..., score: _Optional[float] = ..., revision: _Optional[str] = ..., prompt: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    def __init__(self, accepted: _Optional[int] = ...) -> None: ...

class ItemResult(_message.Message):
    __slots__ = ("scored", "error")
    SCORED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    scored: ScoredPrompt
    error: _status_pb2.Status
    def __init__(self, scored: _Optional[_Union[ScoredPrompt, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ScoredPrompt(_message.Message):
    __slots__ = ("score", "prompt_tokens", "truncated", "length")
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    score: float
    prompt_tokens: int
    truncated: bool
    length: LengthEstimate
    def __init__(self, score: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., truncated: _Optional[bool] = ..., length: _Optional[_Union[LengthEstimate, _Mapping]] = ...) -> None: ...

class LengthEstimate(_message.Message):
    __slots__ = ("expected_tokens", "quantiles")
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUANTILES_FIELD_NUMBER: _ClassVar[int]
    expected_tokens: float
    quantiles: _containers.RepeatedCompositeFieldContainer[Quantile]
    def __init__(self, expected_tokens: _Optional[float] = ..., quantiles: _Optional[_Iterable[_Union[Quantile, _Mapping]]] = ...) -> None: ...

class Quantile(_message.Message):
    __slots__ = ("fraction", "tokens")
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    fraction: float
    tokens: float
    def __init__(self, fraction: _Optional[float] = ..., tokens: _Optional[float] = ...) -> None: ...

class StageTimings(_message.Message):
    __slots__ = ("tokenize_us", "queue_us", "infer_us", "total_us")
    TOKENIZE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    INFER_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    tokenize_us: int
    queue_us: int
    infer_us: int
    total_us: int
    def __init__(self, tokenize_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., infer_us: _Optional[int] = ..., total_us: _Optional[int] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("name", "revision", "label", "label_tokenizer", "precision", "target_models", "max_prompt_tokens", "max_prompt_bytes", "max_batch_prompts", "max_message_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    LABEL_TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODELS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: str
    label: str
    label_tokenizer: str
    precision: str
    target_models: _containers.RepeatedScalarFieldContainer[str]
    max_prompt_tokens: int
    max_prompt_bytes: int
    max_batch_prompts: int
    max_message_bytes: int
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ..., label: _Optional[str] = ..., label_tokenizer: _Optional[str] = ..., precision: _Optional[str] = ..., target_models: _Optional[_Iterable[str]] = ..., max_prompt_tokens: _Optional[int] = ..., max_prompt_bytes: _Optional[int] = ..., max_batch_prompts: _Optional[int] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...
