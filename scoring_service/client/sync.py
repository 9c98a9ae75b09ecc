"""Ask a scoring service for scores: `ScoringClient("127.0.0.1:50051").score(prompt)`.

Needs grpc and protobuf, nothing else: a scheduler process installs no model runtime for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lengthwise.errors import InvalidPrompt, ScoringError
from scoring_service.client import codec
from scoring_service.client.codec import Observed, Score, ServiceInfo
from scoring_service.client.connection import BlockingConnection
from scoring_service.proto import scoring_pb2 as pb


class ScoringClient(BlockingConnection):
    """A connection to one scoring service. Threads may share it; calls fail instead of waiting.

    Args:
        target: HOST:PORT or any gRPC target.
        timeout_s: deadline of each call to the service, seconds.
        target_model: whose response lengths `Score.expected_tokens` estimates; None: no estimate.
        security: TLS and token; the default is plaintext.

    Raises:
        ConfigError: no target, or a deadline that no call can keep.
    """

    def score(self, prompt: str, *, timeout_s: float | None = None) -> Score:
        """The score of one prompt.

        Raises:
            InvalidPrompt: empty, too large, not a Unicode str, or an unknown target model.
            ScoringTimeout: no answer within `timeout_s` (None: the client's).
            ServiceOverloaded, ServiceUnavailable, ScoringError: as their names say.
        """
        request = codec.write_prompt(prompt, self._target_model)
        return codec.read_score(self._call("Score", request, timeout_s))

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
        for chunk in codec.chunks(prompts, limits):
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
        timeout_ms = max(1, round(self._options(timeout_s)["timeout"] * 1e3))
        broken: list[Exception] = []

        def requests() -> Iterator[pb.StreamRequest]:
            # gRPC calls this in a thread of its own and would say of an error only that there was.
            try:
                for place, prompt in enumerate(prompts):
                    yield codec.write_stream_prompt(place, prompt, self._target_model, timeout_ms)
            except Exception as error:
                broken.append(error)

        with self._errors():
            answers = self._stub.ScoreStream(requests(), metadata=self._metadata)
        while True:
            with self._errors():
                answer = next(answers, None)
            if answer is None:
                break
            yield codec.read_stream_item(answer)
        if broken:
            raise broken[0]

    def report(self, observed: Sequence[Observed], *, timeout_s: float | None = None) -> int:
        """Report observed response lengths; returns how many are of the served revision.

        At most `ServiceInfo.max_batch_prompts` at once. Raises as `score` does.
        """
        return int(self._call("Report", codec.write_report(observed), timeout_s).accepted)

    def info(self, *, timeout_s: float | None = None) -> ServiceInfo:
        """The served model and the service's limits. Raises as `score` does."""
        self._limits = codec.read_info(self._call("Info", pb.InfoRequest(), timeout_s))
        return self._limits

    def _score_chunk(
        self, prompts: Sequence[str], timeout_s: float | None
    ) -> Sequence[Score | ScoringError]:
        try:
            request = codec.write_batch(prompts, self._target_model)
            return codec.read_batch(self._call("ScoreBatch", request, timeout_s))
        except InvalidPrompt as error:
            if len(prompts) == 1:
                return [error]
            # The message as a whole was refused: find the culprit, keep the others.
            return [s for prompt in prompts for s in self._score_chunk([prompt], timeout_s)]
        except ScoringError as error:
            return [error] * len(prompts)

    def _call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        call = getattr(self._stub, method)
        with self._errors():
            return call(request, **self._options(timeout_s))
