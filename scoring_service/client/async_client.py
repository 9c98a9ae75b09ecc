"""`ScoringClient` for asyncio: the same calls, awaited."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from lengthwise.errors import InvalidPrompt, ScoringError
from scoring_service.client import codec
from scoring_service.client.codec import Score, ServiceInfo
from scoring_service.client.connection import Connection
from scoring_service.proto import scoring_pb2 as pb


class AsyncScoringClient(Connection):
    """A connection to one scoring service, for one event loop; arguments as of `ScoringClient`."""

    is_awaited = True

    async def score(self, prompt: str, *, timeout_s: float | None = None) -> Score:
        """Return the score of one prompt. Raises as `ScoringClient.score` does."""
        request = codec.write_prompt(prompt, self._target_model)
        return codec.read_score(await self._call("Score", request, timeout_s))

    async def score_batch(
        self, prompts: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Score | ScoringError]:
        """Return a score or an error for each prompt, in their order."""
        try:
            limits = self._limits or await self.info(timeout_s=timeout_s)
        except ScoringError as error:
            return [error] * len(prompts)
        parts = [self._score_chunk(chunk, timeout_s) for chunk in codec.chunks(prompts, limits)]
        return [score for part in await asyncio.gather(*parts) for score in part]

    async def info(self, *, timeout_s: float | None = None) -> ServiceInfo:
        """Return the served model and the service's limits. Raises as `score` does."""
        self._limits = codec.read_info(await self._call("Info", pb.InfoRequest(), timeout_s))
        return self._limits

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _score_chunk(
        self, prompts: Sequence[str], timeout_s: float | None
    ) -> Sequence[Score | ScoringError]:
        try:
            request = codec.write_batch(prompts, self._target_model)
            return codec.read_batch(await self._call("ScoreBatch", request, timeout_s))
        except InvalidPrompt as error:
            if len(prompts) == 1:
                return [error]
            # The message as a whole was refused: find the bad prompt, keep the others.
            return [s for prompt in prompts for s in await self._score_chunk([prompt], timeout_s)]
        except ScoringError as error:
            return [error] * len(prompts)

    async def _call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        call = getattr(self._stub, method)
        with self._errors():
            return await call(request, **self._options(timeout_s))
