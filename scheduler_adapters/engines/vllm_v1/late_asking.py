"""Scores for requests that went on without one, asked for further while they wait in the engine.

The engine is sent the score with the ticket that the request carries (`score_channel.py`); a score
that comes before the request is admitted still moves it. Imports no engine.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from math import isfinite
from typing import Final

from scheduler_adapters.engines.score_channel import ScoreSender
from scheduler_adapters.planner.request_annotations import TICKET, score_hints
from scoring_service.client.fail_open import Answer

MOST: Final = 1024
"""Scores that are asked for at once; beyond, requests stay without one."""
RETRIED: Final = frozenset({"timeout", "overloaded", "unavailable", "breaker_open"})
"""Outcomes that may be another one a moment later."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class LateAsking:
    """Goes on asking for at most `late_s` after the deadline, or until the answer begins.

    Args:
        count: is told how each of them ended: "sent", "started" (the request was admitted first),
            "full" (too many at once), or why there is no score.
    """

    def __init__(
        self,
        sender: ScoreSender,
        *,
        late_s: float,
        count: Callable[[str], None],
    ) -> None:
        self._sender = sender
        self._late_s = late_s
        self._count = count
        self._tasks: dict[str, asyncio.Task[str]] = {}

    def start(
        self,
        asking: asyncio.Future[Answer],
        again: Callable[[], Awaitable[Answer]],
        on_end: Callable[[], object],
    ) -> str | None:
        """Return the ticket of a request whose score is being asked for; None for one too many.

        Args:
            again: asks once more.
            on_end: called when it is asked for no more; not for one too many.
        """
        if len(self._tasks) >= MOST:
            self._count("full")
            return None
        ticket = secrets.token_hex(16)

        def ended(task: asyncio.Task[str]) -> None:
            del self._tasks[ticket]
            asking.cancel()
            on_end()
            self._count("started" if task.cancelled() else task.result())

        task = asyncio.create_task(self._ask(ticket, asking, again))
        self._tasks[ticket] = task
        task.add_done_callback(ended)
        return ticket

    def stop(self, ticket: str) -> None:
        """Ask no more: the request is being answered, or has gone."""
        if (task := self._tasks.get(ticket)) is not None:
            task.cancel()

    async def _ask(
        self, ticket: str, asking: asyncio.Future[Answer], again: Callable[[], Awaitable[Answer]]
    ) -> str:
        """Return how it ended; cancelled where the request was first."""
        pause_s = _FIRST_PAUSE_S
        try:
            async with asyncio.timeout(self._late_s):
                answer = await asking
                while answer.outcome in RETRIED:
                    # Those that were refused together must not come back together.
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    answer = await again()
                score = answer.score
                if score is None or not isfinite(score.value):
                    return answer.outcome
                hints = score_hints(score.value, score.quantiles)
                await self._sender.send(hints | {TICKET: ticket})
                return "sent"
        except TimeoutError:
            return "timeout"
