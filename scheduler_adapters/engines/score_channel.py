"""Late scores, from the API server's process to the processes of the engines.

Each engine has a datagram socket in the folder that the processes share (`SHARED_FOLDER`); only
the same user may write to it. A score is sent to all engines; the engine with its request uses it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER, EngineSocket
from scheduler_adapters.planner.late_scores import LateScore, late_score
from scheduler_adapters.planner.request_annotations import (
    REQUEST_KEY,
    request_key,
    score_annotations,
)

if TYPE_CHECKING:
    from scoring_service.client.fail_open import Answer

log = logging.getLogger(__name__)

MAX_LATE: Final = 1024
"""Most late scores requested at once; further requests stay without one."""
RETRIED: Final = frozenset({"timeout", "overloaded", "unavailable", "breaker_open"})
"""Outcomes that may change within a moment."""
_SOCKET: Final = "lengthwise-scores-{}.sock"
_MAX_BYTES: Final = 1 << 16
# A socket holds few datagrams; its thread reads them within a switch of threads.
_RESEND_S: Final = 0.005
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


def score_receiver(folder: Path, number: int, take: Callable[[LateScore], object]) -> EngineSocket:
    """Call `take` in a thread with each late score sent to engine `number`."""

    def serve(bound: socket.socket) -> None:
        content = bound.recv(_MAX_BYTES)
        with suppress(ValueError, AttributeError, RecursionError):
            carried = json.loads(content)
            if (late := late_score(request_key(carried), carried)) is not None:
                take(late)

    return EngineSocket(folder / _SOCKET.format(number), socket.SOCK_DGRAM, serve)


def receiver_from_environment(
    number: int, take: Callable[[LateScore], object]
) -> EngineSocket | None:
    """Return the receiver of an engine; None if the processes share no folder."""
    if not (folder := os.environ.get(SHARED_FOLDER)):
        return None
    try:
        return score_receiver(Path(folder), number, take)
    except OSError as error:
        log.warning("late scores cannot be received in %s (%s): they are not used", folder, error)
        return None


class LateScoring:
    """Scores still requested after the deadline of their requests, and sent to the engines.

    Args:
        folder: of the engines' sockets.
        late_s: most seconds until a score arrives.
        count: called with the outcome of each: "sent", "started" (the request was admitted first),
            "full" (too many at once), or the reason for no score.
    """

    def __init__(self, folder: Path, *, late_s: float, count: Callable[[str], None]) -> None:
        self._folder = folder
        self._late_s = late_s
        self._count = count
        self._tasks: dict[str, asyncio.Task[str]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def start(
        self, first: asyncio.Future[Answer], retry: Callable[[], Awaitable[Answer]]
    ) -> str | None:
        """Return the key of a request whose score will be sent later; None if there will be none.

        `first` is the answer that missed the deadline.
        """
        if len(self._tasks) >= MAX_LATE:
            self._count("full")
            return None
        key = secrets.token_hex(16)

        def ended(task: asyncio.Task[str]) -> None:
            del self._tasks[key]
            first.cancel()
            self._count("started" if task.cancelled() else task.result())

        self._tasks[key] = asyncio.create_task(self._score(key, first, retry))
        self._tasks[key].add_done_callback(ended)
        return key

    def stop(self, key: str) -> None:
        """Cancel a score whose request is being answered, or has left."""
        if (task := self._tasks.get(key)) is not None:
            task.cancel()

    async def _score(
        self, key: str, first: asyncio.Future[Answer], retry: Callable[[], Awaitable[Answer]]
    ) -> str:
        pause_s = _FIRST_PAUSE_S
        try:
            async with asyncio.timeout(self._late_s):
                answer = await first
                while answer.outcome in RETRIED:
                    # Requests refused together must not return together.
                    await asyncio.sleep(answer.retry_s + pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    answer = await retry()
                score = answer.score
                if score is None or not isfinite(score.value):
                    return answer.outcome
                carried = score_annotations(score.value, score.quantiles)
                await self.send(carried | {REQUEST_KEY: key})
                return "sent"
        except TimeoutError:
            return "timeout"

    async def send(self, carried: Mapping[str, Any]) -> None:
        """Send a score and its key to each engine, when its socket has room."""
        content = json.dumps(carried).encode()
        for path in self._folder.glob(_SOCKET.format("*")):
            while not self._is_sent(content, str(path)):
                await asyncio.sleep(_RESEND_S)

    def _is_sent(self, content: bytes, path: str) -> bool:
        try:
            self._socket.sendto(content, path)
        except BlockingIOError:
            return False
        except OSError as error:  # the engine has ended
            log.debug("no late score for %s: %s", path, error)
        return True
