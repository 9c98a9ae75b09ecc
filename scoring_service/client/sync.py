"""Ask a scoring service for scores: `ScoringClient("127.0.0.1:50051").score(prompt)`.

Needs grpc and protobuf, nothing else: a scheduler process installs no model runtime for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import grpc

from scoring_service.client.channel import PLAINTEXT, ClientSecurity, check_seconds
from scoring_service.errors import InvalidPrompt, ScoringError, ServiceUnavailable
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.scoring_pb2_grpc import ScoringServiceStub
from scoring_service.status import from_rpc_error, from_status

M = TypeVar("M")
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
class Observed:
    """How long a scored prompt's response really was."""

    score: Score
    output_tokens: int
    target_model: str
    prompt: str = ""
    """For the service's training log; leave it empty if it must not be stored."""


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
        security: TLS and token; the default is plaintext.

    Raises:
        ConfigError: no target, or a deadline that no call can keep.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 1.0,
        target_model: str | None = None,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        check_seconds("timeout_s", timeout_s)
        self.target = target
        self.timeout_s = timeout_s
        self._target_model = target_model or ""
        self._metadata = security.metadata
        self._channel = security.open(target)
        self._stub = ScoringServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._limits: ServiceInfo | None = None

    def score(self, prompt: str, *, timeout_s: float | None = None) -> Score:
        """The score of one prompt.

        Raises:
            InvalidPrompt: empty, too large, not a Unicode str, or an unknown target model.
            ScoringTimeout: no answer within `timeout_s` (None: the client's).
            ServiceOverloaded, ServiceUnavailable, ScoringError: as their names say.
        """
        request = write_prompt(prompt, self._target_model)
        return read_score(self._call(self._stub.Score, request, timeout_s))

    def score_batch(
        self, prompts: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Score | ScoringError]:
        """Scores in the order of `prompts`; where one could not be had, the error says why.

        Split into as many calls as the service's limits ask for, each with its own `timeout_s`.
        Raises nothing that concerns the service: its absence is the same error for every prompt.

        Raises:
            InvalidPrompt: one string instead of a sequence of them.
        """
        try:
            limits = self._limits or self.info(timeout_s=timeout_s)
        except ScoringError as error:
            return [error] * len(prompts)
        scores: list[Score | ScoringError] = []
        for chunk in chunks(prompts, limits):
            scores += self._score_chunk(chunk, timeout_s)
        return scores

    def score_stream(
        self, prompts: Iterable[str], *, timeout_s: float | None = None
    ) -> Iterator[tuple[int, Score | ScoringError]]:
        """Scores as they come, each with its prompt's place in `prompts`, read when needed.

        `timeout_s` is per prompt, from its arrival at the service. Raises as `score` does if the
        stream as a whole fails. What reading `prompts` raises, or a prompt that cannot be sent,
        ends the stream: it is raised after the scores of those before it.
        """
        seconds = self.timeout_s if timeout_s is None else timeout_s
        timeout_ms = max(1, round(seconds * 1e3))
        broken: list[Exception] = []

        def requests() -> Iterator[pb.StreamRequest]:
            # gRPC calls this in a thread of its own and would say of an error only that there was.
            try:
                for place, prompt in enumerate(prompts):
                    yield _encode(
                        pb.StreamRequest,
                        [prompt],
                        id=str(place),
                        prompt=prompt,
                        target_model=self._target_model,
                        timeout_ms=timeout_ms,
                    )
            except Exception as error:
                broken.append(error)

        try:
            answers = self._stub.ScoreStream(requests(), metadata=self._metadata)
        except ValueError as error:
            raise closed(self.target, error) from error
        try:
            for answer in answers:
                yield int(answer.id), _item(answer.result, answer.revision)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from error
        if broken:
            raise broken[0]

    def report(self, observed: Sequence[Observed], *, timeout_s: float | None = None) -> int:
        """Tell the service how long responses were; returns how many are of its revision.

        At most `ServiceInfo.max_batch_prompts` at once. Raises as `score` does.
        """
        request = pb.ReportRequest()
        for seen in observed:
            request.observations.add(
                target_model=seen.target_model,
                output_tokens=seen.output_tokens,
                score=seen.score.value,
                revision=seen.score.revision,
                prompt=seen.prompt,
            )
        return int(self._call(self._stub.Report, request, timeout_s).accepted)

    def info(self, *, timeout_s: float | None = None) -> ServiceInfo:
        """The served model and the service's limits. Raises as `score` does."""
        response = self._call(self._stub.Info, pb.InfoRequest(), timeout_s)
        self._limits = read_info(response)
        return self._limits

    def close(self) -> None:
        """Drop the connection; calls in flight fail."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _score_chunk(
        self, prompts: Sequence[str], timeout_s: float | None
    ) -> Sequence[Score | ScoringError]:
        try:
            request = write_batch(prompts, self._target_model)
            return read_batch(self._call(self._stub.ScoreBatch, request, timeout_s))
        except InvalidPrompt as error:
            if len(prompts) == 1:
                return [error]
            # The message as a whole was refused: find the culprit, keep the others.
            return [s for prompt in prompts for s in self._score_chunk([prompt], timeout_s)]
        except ScoringError as error:
            return [error] * len(prompts)

    def _call(self, method: Callable[..., Any], request: Any, timeout_s: float | None) -> Any:
        try:
            return method(
                request,
                timeout=self.timeout_s if timeout_s is None else timeout_s,
                metadata=self._metadata,
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from error
        except ValueError as error:
            raise closed(self.target, error) from error


def closed(target: str, error: Exception) -> ServiceUnavailable:
    """What a client raises that was closed before."""
    return ServiceUnavailable(f"the client of {target} is closed ({error}); make another")


def write_prompt(prompt: str, target_model: str) -> pb.ScoreRequest:
    """A request for one prompt. Raises InvalidPrompt if it is not Unicode text."""
    return _encode(pb.ScoreRequest, [prompt], prompt=prompt, target_model=target_model)


def write_batch(prompts: Sequence[str], target_model: str) -> pb.ScoreBatchRequest:
    """A request for many prompts. Raises InvalidPrompt if one is not Unicode text."""
    return _encode(pb.ScoreBatchRequest, prompts, prompts=prompts, target_model=target_model)


def read_score(response: pb.ScoreResponse) -> Score:
    """The score in an answer."""
    return _score(response.scored, response.revision)


def read_batch(response: pb.ScoreBatchResponse) -> list[Score | ScoringError]:
    """The score of each prompt, or why there is none."""
    return [_item(item, response.revision) for item in response.items]


def read_info(response: pb.InfoResponse) -> ServiceInfo:
    """What the service says of itself."""
    values = {name: getattr(response, name) for name in ServiceInfo.__dataclass_fields__}
    return ServiceInfo(**{**values, "target_models": tuple(response.target_models)})


def _encode(message: Callable[..., M], prompts: Sequence[str], /, **fields: Any) -> M:
    for prompt in prompts:
        # protobuf takes None for an empty prompt, and bytes for text.
        if not isinstance(prompt, str):
            raise InvalidPrompt(f"a prompt is {prompt!r:.60}, not a str; send text")
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


def chunks(prompts: Sequence[str], limits: ServiceInfo) -> Iterator[Sequence[str]]:
    """Cut `prompts` into runs that keep the service's limits on count and bytes.

    Raises:
        InvalidPrompt: one string, which would be taken for a list of characters.
    """
    if isinstance(prompts, str):
        raise InvalidPrompt("prompts is one string; put it into a list, or use `score`")
    start, num_bytes = 0, 0
    for i, prompt in enumerate(prompts):
        # What is not text is refused later, and by itself.
        text = prompt if isinstance(prompt, str) else ""
        size = len(text.encode(errors="surrogatepass")) + _FRAMING_BYTES
        full = i - start == limits.max_batch_prompts
        if i > start and (full or num_bytes + size > limits.max_message_bytes):
            yield prompts[start:i]
            start, num_bytes = i, 0
        num_bytes += size
    if start < len(prompts):
        yield prompts[start:]
