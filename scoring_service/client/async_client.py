"""`ScoringClient` for asyncio: the same calls, awaited."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Self, TypeVar

from lengthwise.errors import ScoringError
from scoring_service.client.codec import Score, ServiceInfo
from scoring_service.client.sync import ScoringClient

T = TypeVar("T")
MAX_CALLS: Final = 64
"""Calls at once, as many as a service answers; further calls wait."""


class AsyncScoringClient:
    """A connection to one scoring service, for any event loop; arguments as of `ScoringClient`."""

    def __init__(self, target: str, **settings: Any) -> None:
        self._client = ScoringClient(target, **settings)
        # Threads, so that one implementation of the calls serves both clients.
        self._threads = ThreadPoolExecutor(MAX_CALLS, "scoring-client")

    async def score(self, prompt: str, *, timeout_s: float | None = None) -> Score:
        """Return the score of one prompt. Raises as `ScoringClient.score` does."""
        return await self._run(partial(self._client.score, prompt, timeout_s=timeout_s))

    async def score_batch(
        self, prompts: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Score | ScoringError]:
        """Return a score or an error for each prompt, in their order."""
        return await self._run(partial(self._client.score_batch, prompts, timeout_s=timeout_s))

    async def info(self, *, timeout_s: float | None = None) -> ServiceInfo:
        """Return the served model and the service's limits. Raises as `score` does."""
        return await self._run(partial(self._client.info, timeout_s=timeout_s))

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
