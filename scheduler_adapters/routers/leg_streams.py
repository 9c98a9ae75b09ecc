"""Streams of legs over a handle of Ray Serve: opened, moved at a phase change, resumed.

A leg that cannot be moved stays where it is. A leg whose replica fails is continued by another
replica, from the last token received.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from lengthwise.errors import require
from scheduler_adapters.routers.legs import BrokenLeg, Emitted, Generation, Leg

log = logging.getLogger(__name__)

Message = TypeVar("Message", str, Emitted)


class Unavailable(Exception):
    """Request that no replica has served in time."""


class _Stream:
    """One call of a replica: its name, then `Emitted` until the end."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.response, self.leg, self.replica = call(*arguments), arguments[-1], ""

    async def next(self, kind: type[Message], deadline_s: float) -> Message:
        """Wait for the next message; raise BrokenLeg if the replica fails to send it."""
        try:
            async with asyncio.timeout(deadline_s):
                message = await self.response.__anext__()
        except RayTaskError:
            raise  # an error of the engine, which another replica would repeat
        except (RayError, RayServeException, StopAsyncIteration) as error:
            raise BrokenLeg(f"{type(error).__name__}: {error}") from error
        except TimeoutError as error:
            raise BrokenLeg(f"no message within {deadline_s:.1f} s") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise BrokenLeg("cancelled by its replica") from error
        if not isinstance(message, kind):
            raise BrokenLeg(f"message {message!r}, no {kind.__name__}")
        return message


@dataclass(frozen=True, kw_only=True)
class LegLimits:
    """Deadlines of legs and requests."""

    accept_s: float = 10.0
    """Seconds until a replica accepts a leg; after that, the client gets status 503."""
    stall_s: float = 60.0
    """Seconds without a message after which a replica counts as failed for this request."""
    request_s: float = 600.0
    """Seconds for a whole request."""
    max_resumes: int = 3
    """Failures of replicas that one request survives."""

    def __post_init__(self) -> None:
        for name in ("accept_s", "stall_s", "request_s"):
            require(name, getattr(self, name), getattr(self, name) > 0, "seconds above 0")


class LegStreams:
    """Serves requests by legs on the replicas behind a handle of their `generate`, with streams.

    `moves`: place a request anew at its phase change.
    """

    def __init__(self, handle: Any, limits: LegLimits, *, moves: bool = True) -> None:
        self.handle, self.limits, self.moves = handle, limits, moves
        self.counts: Counter[str] = Counter()
        """Legs by decider, and "moved", "stayed", "hand_over_failed", "resumed"."""

    async def serve(self, generation: Generation) -> AsyncIterator[int]:
        """Yield the number of new tokens of each message, until the request has ended.

        Raises:
            Unavailable: no replica has accepted it, or too many have failed.
        """
        stream = _Stream(self.handle.remote, generation.leg("arrival"))
        end_s = time.monotonic() + self.limits.request_s
        try:
            while True:
                try:
                    if not stream.replica:
                        await self._accept(stream)
                    left_s = min(self.limits.stall_s, end_s - time.monotonic())
                    was_thinking = generation.is_thinking
                    num_new = generation.accept(await stream.next(Emitted, max(0.0, left_s)))
                except BrokenLeg as error:
                    stream.response.cancel()
                    leg = self._resumed(generation, stream, error, end_s)
                    stream = _Stream(self.handle.remote, leg)
                    continue
                yield num_new
                if generation.finish:
                    return
                if was_thinking and not generation.is_thinking and self.moves:
                    stream = await self._change_phase(generation, stream)
        finally:
            stream.response.cancel()

    async def _accept(self, stream: _Stream) -> None:
        stream.replica = await stream.next(str, self.limits.accept_s)
        # The router, which is in this process, has left its mark in the leg.
        self.counts[stream.leg.routed.decided_by if stream.leg.routed else "unknown"] += 1

    def _resumed(
        self, generation: Generation, stream: _Stream, error: Exception, end_s: float
    ) -> Leg:
        """Return the leg that continues after a failure, at another replica if there is one."""
        at = stream.replica or (stream.leg.routed.replica if stream.leg.routed else "")
        generation.failed |= {at} - {""}
        generation.num_resumes += 1
        log.warning("%s failed at %s: %s", generation.first.request_id, at or "no replica", error)
        if not at:
            raise Unavailable(f"no replica within {self.limits.accept_s:g} s") from error
        if generation.num_resumes > self.limits.max_resumes or time.monotonic() >= end_s:
            raise Unavailable(f"replicas failed {generation.num_resumes} times") from error
        self.counts["resumed"] += 1
        return generation.leg("resumed")

    async def _change_phase(self, generation: Generation, stream: _Stream) -> _Stream:
        """Return the stream of the answering phase: a new one if the placement moves the request.

        The present stream continues meanwhile, so a failed hand-over loses nothing.
        """
        leg = generation.leg("phase_change", current=stream.replica)
        new, closed = None, stream
        try:
            deadline = asyncio.timeout(self.limits.accept_s)
            async with deadline, self.handle.choose_replica(leg) as selection:
                if selection.replica_id != stream.replica:
                    closed = new = _Stream(self.handle.dispatch, selection, leg)
                    await self._accept(new)
                    closed = stream
            self.counts["stayed" if new is None else "moved"] += 1
        except (RayError, RayServeException, BrokenLeg, TimeoutError) as error:
            log.warning("%s stays at %s: %s", leg.request_id, stream.replica, error)
            self.counts["hand_over_failed"] += 1
        finally:
            if new is not None:
                closed.response.cancel()
        return stream if closed is new or new is None else new
