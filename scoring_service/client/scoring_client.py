"""Calls that return a score or raise: `ScoringClient("127.0.0.1:50051").score(prompt)`.

The client needs only grpc and protobuf: a scheduler process installs no model runtime for it.
"""

from collections.abc import Sequence
from typing import Any

from lengthwise.errors import InvalidPrompt, ScoringError
from scoring_service.client import codec
from scoring_service.client.channel import Connection
from scoring_service.client.codec import Observed, Score, ServiceInfo
from scoring_service.proto import scoring_pb2 as pb


class ScoringClient(Connection):
    """A connection to one scoring service. Threads may share it; calls fail instead of waiting.

    Args:
        target: HOST:PORT or any gRPC target.
        timeout_s: deadline of each call to the service, seconds.
        target_model: model whose response lengths `Score.expected_tokens` estimates; None: none.
        security: TLS and token; the default is plaintext.

    Raises:
        ConfigError: no target, or a deadline that no call can keep.
    """

    _limits: ServiceInfo | None = None

    def score(self, prompt: str, *, timeout_s: float | None = None) -> Score:
        """Return the score of one prompt.

        Raises:
            InvalidPrompt: empty, too large, not a Unicode str, or an unknown target model.
            ScoringTimeout: no answer within `timeout_s`; None: the client's `timeout_s`.
            ServiceOverloaded, ServiceUnavailable, ScoringError: as their names say.
        """
        request = codec.write_prompt(prompt, self._target_model)
        return codec.read_score(self._call("Score", request, timeout_s))

    def score_batch(
        self, prompts: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Score | ScoringError]:
        """Return a score or an error for each prompt, in their order.

        The service's limits may split the prompts into several calls, each with `timeout_s`. An
        error of the service is not raised: it is the result of every prompt that it concerns.

        Raises:
            InvalidPrompt: one string instead of a sequence of strings.
        """
        try:
            limits = self._limits or self.info(timeout_s=timeout_s)
        except ScoringError as error:
            return [error] * len(prompts)
        chunks = codec.chunks(prompts, limits)
        return [score for chunk in chunks for score in self._score_chunk(chunk, timeout_s)]

    def report(self, observed: Sequence[Observed], *, timeout_s: float | None = None) -> int:
        """Report at most `max_batch_prompts` lengths; return the number of the served revision."""
        return int(self._call("Report", codec.write_report(observed), timeout_s).accepted)

    def info(self, *, timeout_s: float | None = None) -> ServiceInfo:
        """Return the served model and the service's limits. Raises as `score` does."""
        info = self._call("Info", pb.InfoRequest(), timeout_s)
        values = {name: getattr(info, name) for name in ServiceInfo.__dataclass_fields__}
        self._limits = ServiceInfo(**{**values, "target_models": tuple(info.target_models)})
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
            # The message as a whole was refused: find the bad prompt, keep the others.
            return [s for prompt in prompts for s in self._score_chunk([prompt], timeout_s)]
        except ScoringError as error:
            return [error] * len(prompts)

    def _call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        call = getattr(self._stub, method)
        with self._errors():
            return call(request, **self._options(timeout_s))
