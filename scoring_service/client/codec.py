"""Messages of the service: writes prompts, reads scores and limits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from lengthwise.errors import InvalidPrompt, ScoringError
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.status import from_status

M = TypeVar("M")
_FRAMING_BYTES: Final = 16
"""Most bytes per prompt on the wire, beside the prompt itself."""


@dataclass(frozen=True, slots=True)
class Score:
    """Score of one prompt. Scores compare only within one revision."""

    value: float
    """Higher = longer. No unit: only the order means something."""
    revision: str
    """Twelve hex digits of the model bundle that scored."""
    prompt_tokens: int
    """Tokens that the model read."""
    truncated: bool
    """True where a part of the prompt was not read."""
    expected_tokens: float | None = None
    """Mean response length of the target model, in tokens; None without a target model."""
    quantiles: Mapping[float, float] = field(default_factory=dict)
    """Fraction in (0, 1) -> response length in tokens; empty without a target model."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Observed response length of a scored prompt."""

    score: Score
    output_tokens: int
    target_model: str
    prompt: str = ""
    """Prompt for the service's training log; "" if it must not be stored."""


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """The served model and the limits of the service."""

    name: str
    revision: str
    label: str
    label_tokenizer: str
    precision: str
    target_models: tuple[str, ...]
    max_prompt_tokens: int
    max_prompt_bytes: int
    max_batch_prompts: int
    max_message_bytes: int


def write_prompt(prompt: str, target_model: str) -> pb.ScoreRequest:
    """Return the request for one prompt. Raises InvalidPrompt if it is not Unicode text."""
    fields = {"prompt": prompt, "target_model": target_model, "description": _description(prompt)}
    return _encode(pb.ScoreRequest, [prompt], **fields)


def write_batch(prompts: Sequence[str], target_model: str) -> pb.ScoreBatchRequest:
    """Return the request for many prompts. Raises InvalidPrompt if one is not Unicode text."""
    descriptions = list(map(_description, prompts))
    fields = {"target_model": target_model, "descriptions": descriptions * any(descriptions)}
    return _encode(pb.ScoreBatchRequest, prompts, prompts=prompts, **fields)


def _description(prompt: Any) -> str:
    """Return the description of the request that a text is from; "" for a bare prompt."""
    return str(getattr(prompt, "description", ""))


def write_report(observed: Sequence[Observed]) -> pb.ReportRequest:
    return pb.ReportRequest(
        observations=[
            pb.Observation(
                target_model=seen.target_model,
                output_tokens=seen.output_tokens,
                score=seen.score.value,
                revision=seen.score.revision,
                prompt=seen.prompt,
            )
            for seen in observed
        ]
    )


def read_score(response: pb.ScoreResponse) -> Score:
    return _score(response.scored, response.revision)


def read_batch(response: pb.ScoreBatchResponse) -> list[Score | ScoringError]:
    """Return the score of each prompt, or its error."""
    revision = response.revision
    return [
        from_status(item.error) if item.HasField("error") else _score(item.scored, revision)
        for item in response.items
    ]


def _encode(message: Callable[..., M], prompts: Sequence[str], /, **fields: Any) -> M:
    for prompt in prompts:
        # protobuf accepts None as an empty prompt, and bytes as text.
        if not isinstance(prompt, str):
            raise InvalidPrompt(f"a prompt is {prompt!r:.60}, not a str; send text")
    try:
        return message(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidPrompt(f"a prompt is not Unicode text ({error}); send a valid str") from error


def _score(scored: pb.ScoredPrompt, revision: str) -> Score:
    return Score(
        value=scored.score,
        revision=revision,
        prompt_tokens=scored.prompt_tokens,
        truncated=scored.truncated,
        expected_tokens=scored.length.expected_tokens if scored.HasField("length") else None,
        quantiles={round(q.fraction, 6): q.tokens for q in scored.length.quantiles},
    )


def chunks(prompts: Sequence[str], limits: ServiceInfo) -> Iterator[Sequence[str]]:
    """Yield parts of `prompts` that keep the service's limits on count and bytes.

    Raises InvalidPrompt for one string, which reads as a list of characters.
    """
    if isinstance(prompts, str):
        raise InvalidPrompt("prompts is one string; put it into a list, or use `score`")
    start, num_bytes = 0, 0
    for i, prompt in enumerate(prompts):
        # Other types are refused later, each by itself.
        text = prompt if isinstance(prompt, str) else ""
        size = len(text.encode(errors="surrogatepass")) + _FRAMING_BYTES
        full = i - start == limits.max_batch_prompts
        if i > start and (full or num_bytes + size > limits.max_message_bytes):
            yield prompts[start:i]
            start, num_bytes = i, 0
        num_bytes += size
    if start < len(prompts):
        yield prompts[start:]
