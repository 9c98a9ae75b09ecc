"""Ask a scoring service for scores: `ScoringClient("127.0.0.1:50051").score(prompt)`.

Needs grpc and protobuf, nothing else: a scheduler process installs no model runtime for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from scoring_service.client.channel import PLAINTEXT, ClientSecurity
from scoring_service.client.codec import (
    Observed,
    Score,
    ServiceInfo,
    chunks,
    read_batch,
    read_info,
    read_score,
    read_stream_item,
    write_batch,
    write_prompt,
    write_report,
    write_stream_prompt,
)
from scoring_service.client.connection import Connection
from scoring_service.errors import InvalidPrompt, ScoringError
from scoring_service.proto import scoring_pb2 as pb


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
        self.target = target
        self._connection = Connection(target, target_model, security, timeout_s=timeout_s)
        self._limits: ServiceInfo | None = None

    def score(self, prompt: str, *, timeout_s: float | None = None) -> Score:
        """The score of one prompt.

        Raises:
            InvalidPrompt: empty, too large, not a Unicode str, or an unknown target model.
            ScoringTimeout: no answer within `timeout_s` (None: the client's).
            ServiceOverloaded, ServiceUnavailable, ScoringError: as their names say.
        """
        request = write_prompt(prompt, self._connection.target_model)
        return read_score(self._call("Score", request, timeout_s))

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
        connection = self._connection
        seconds = connection.timeout_s if timeout_s is None else timeout_s
        timeout_ms = max(1, round(seconds * 1e3))
        broken: list[Exception] = []

        def requests() -> Iterator[pb.StreamRequest]:
            # gRPC calls this in a thread of its own and would say of an error only that there was.
            try:
                for place, prompt in enumerate(prompts):
                    yield write_stream_prompt(place, prompt, connection.target_model, timeout_ms)
            except Exception as error:
                broken.append(error)

        with connection.errors():
            answers = connection.stub.ScoreStream(requests(), metadata=connection.metadata)
        while True:
            with connection.errors():
                answer = next(answers, None)
            if answer is None:
                break
            yield read_stream_item(answer)
        if broken:
            raise broken[0]

    def report(self, observed: Sequence[Observed], *, timeout_s: float | None = None) -> int:
        """Report observed response lengths; returns how many are of the served revision.

        At most `ServiceInfo.max_batch_prompts` at once. Raises as `score` does.
        """
        return int(self._call("Report", write_report(observed), timeout_s).accepted)

    def info(self, *, timeout_s: float | None = None) -> ServiceInfo:
        """The served model and the service's limits. Raises as `score` does."""
        response = self._call("Info", pb.InfoRequest(), timeout_s)
        self._limits = read_info(response)
        return self._limits

    def close(self) -> None:
        """Drop the connection; calls in flight fail."""
        self._connection.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _score_chunk(
        self, prompts: Sequence[str], timeout_s: float | None
    ) -> Sequence[Score | ScoringError]:
        try:
            request = write_batch(prompts, self._connection.target_model)
            return read_batch(self._call("ScoreBatch", request, timeout_s))
        except InvalidPrompt as error:
            if len(prompts) == 1:
                return [error]
            # The message as a whole was refused: find the culprit, keep the others.
            return [s for prompt in prompts for s in self._score_chunk([prompt], timeout_s)]
        except ScoringError as error:
            return [error] * len(prompts)

    def _call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        call = getattr(self._connection.stub, method)
        with self._connection.errors():
            return call(request, **self._connection.options(timeout_s))
