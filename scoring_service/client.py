"""Ask a scoring service for scores: `ScoringClient("127.0.0.1:50051").score(prompt)`.

Needs grpc and protobuf, nothing else: a scheduler process installs no model runtime for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import grpc

from scoring_service.errors import InvalidPrompt, ScoringError
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.scoring_pb2_grpc import ScoringServiceStub
from scoring_service.status import from_rpc_error, from_status

_FRAMING_BYTES: Final = 16
"""At most this much per prompt on the wire, beside the prompt itself."""


@dataclass(frozen=True, slots=True)
class Score:
    """One prompt's score. Scores compare only within one revision."""

    value: float
    """Higher = longer. No unit: only the order means something."""
    revision: str
    """Twelve hex digits of the model bundle that scored."""
    prompt_tokens: int
    """Tokens that the model saw."""
    truncated: bool
    """Whether the end of the prompt was cut off."""
    expected_tokens: float | None = None
    """Mean response length of the target model, in tokens; None if none was asked for."""
    quantiles: Mapping[float, float] = field(default_factory=dict)
    """Fraction in (0, 1) -> response length in tokens; empty if no target model was asked for."""


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What is served, and within which limits."""

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


class ScoringClient:
    """A connection to one scoring service. Threads may share it; calls fail instead of waiting.

    Args:
        target: HOST:PORT or any gRPC target.
        timeout_s: deadline of each call to the service, seconds.
        target_model: whose response lengths `Score.expected_tokens` estimates; None: no estimate.
    """

    def __init__(
        self, target: str, *, timeout_s: float = 1.0, target_model: str | None = None
    ) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self._target_model = target_model or ""
        self._channel = grpc.insecure_channel(target)
        self._stub = ScoringServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._limits: ServiceInfo | None = None

    def score(self, prompt: str, *, timeout_s: float | None = None) -> Score:
        """The score of one prompt.

        Raises:
            InvalidPrompt: empty, too large, not Unicode, or an unknown target model.
            ScoringTimeout: no answer within `timeout_s` (None: the client's).
            ServiceOverloaded, ServiceUnavailable, ScoringError: as their names say.
        """
        request = _encode(pb.ScoreRequest, prompt=prompt, target_model=self._target_model)
        response = self._call(self._stub.Score, request, timeout_s)
        return _score(response.scored, response.revision)

    def score_batch(
        self, prompts: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Score | ScoringError]:
        """Scores in the order of `prompts`; where one could not be had, the error says why.

        Split into as many calls as the service's limits ask for, each with its own `timeout_s`.
        Raises nothing that concerns the service: its absence is the same error for every prompt.
        """
        try:
            limits = self._limits or self.info(timeout_s=timeout_s)
        except ScoringError as error:
            return [error] * len(prompts)
        scores: list[Score | ScoringError] = []
        for chunk in _chunks(prompts, limits):
            scores += self._score_chunk(chunk, timeout_s)
        return scores

    def info(self, *, timeout_s: float | None = None) -> ServiceInfo:
        """The served model and the service's limits. Raises as `score` does."""
        response = self._call(self._stub.Info, pb.InfoRequest(), timeout_s)
        values = {name: getattr(response, name) for name in ServiceInfo.__dataclass_fields__}
        self._limits = ServiceInfo(**{**values, "target_models": tuple(response.target_models)})
        return self._limits

    def close(self) -> None:
        """Drop the connection; calls in flight fail."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _score_chunk(
        self, prompts: Sequence[str], timeout_s: float | None
    ) -> Sequence[Score | ScoringError]:
        try:
            request = _encode(
                pb.ScoreBatchRequest, prompts=prompts, target_model=self._target_model
            )
            response = self._call(self._stub.ScoreBatch, request, timeout_s)
        except InvalidPrompt as error:
            if len(prompts) == 1:
                return [error]
            # The message as a whole was refused: find the culprit, keep the others.
            return [s for prompt in prompts for s in self._score_chunk([prompt], timeout_s)]
        except ScoringError as error:
            return [error] * len(prompts)
        return [_item(item, response.revision) for item in response.items]

    def _call(self, method: Callable[..., Any], request: Any, timeout_s: float | None) -> Any:
        try:
            return method(request, timeout=self.timeout_s if timeout_s is None else timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from error


def _encode(message: Callable[..., Any], **fields: Any) -> Any:
    try:
        return message(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidPrompt(f"a prompt is not Unicode text ({error}); send a valid str") from error


def _score(scored: pb.ScoredPrompt, revision: str) -> Score:
    has_length = scored.HasField("length")
    return Score(
        value=scored.score,
        revision=revision,
        prompt_tokens=scored.prompt_tokens,
        truncated=scored.truncated,
        expected_tokens=scored.length.expected_tokens if has_length else None,
        quantiles={round(q.fraction, 6): q.tokens for q in scored.length.quantiles},
    )


def _item(item: pb.ItemResult, revision: str) -> Score | ScoringError:
    if item.HasField("error"):
        return from_status(item.error)
    return _score(item.scored, revision)


def _chunks(prompts: Sequence[str], limits: ServiceInfo) -> Iterator[Sequence[str]]:
    """Cut `prompts` into runs that keep the service's limits on count and bytes."""
    start, num_bytes = 0, 0
    for i, prompt in enumerate(prompts):
        size = len(prompt.encode(errors="surrogatepass")) + _FRAMING_BYTES
        full = i - start == limits.max_batch_prompts
        if i > start and (full or num_bytes + size > limits.max_message_bytes):
            yield prompts[start:i]
            start, num_bytes = i, 0
        num_bytes += size
    if start < len(prompts):
        yield prompts[start:]
