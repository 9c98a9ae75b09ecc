"""Streams of legs over a handle of Ray Serve: opened, moved at move points, resumed.

A leg that cannot be moved stays where it is. A leg whose replica fails is continued by another
replica, from the last token received. So is a request whose KV could not be handed over. A request
under which two replicas failed before its next token is given to no third one.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from lengthwise.settings import Positive, settings
from scheduler_adapters.routers.legs import BrokenLeg, Emitted, Leg, MovePoints

log = logging.getLogger(__name__)

Message = TypeVar("Message", str, Emitted)
_ASK_AGAIN_S: Final = 0.05
"""Time between two choices for a prefilled request that finds no place."""
_FAILURES: Final = (RayError, RayServeException, BrokenLeg, TimeoutError)


class Unavailable(Exception):
    """Request that no replica has served in time."""

    status = 503


class Suspect(Unavailable):
    """Request under which two replicas fell silent or ended before its next token."""

    status = 500


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


@settings
class LegLimits:
    """Deadlines of legs and requests."""

    accept_s: Positive = 10.0
    """Seconds until a replica accepts a leg; after that, the client gets status 503."""
    stall_s: Positive = 60.0
    """Seconds without a message after which a replica counts as failed for this request. Without
    one of any request it is restarted, so this is longer than the longest prefill."""
    request_s: Positive = 600.0
    """Seconds for a whole request."""
    max_resumes: int = 3
    """Failures of replicas that one request survives."""


class LegStreams:
    """Serves requests by legs on the replicas behind a handle of their `generate`, with streams.

    `points`: where a request is placed anew.
    """

    def __init__(self, handle: Any, limits: LegLimits, points: MovePoints) -> None:
        self.handle, self.limits, self.points = handle, limits, points
        self.counts: Counter[str] = Counter()
        """Legs by decider, and "moved", "stayed", "hand_over_failed", "resumed", "with_kv"."""
        self.replicas: dict[str, list[str]] = defaultdict(list)
        """Replicas that have accepted legs, by request; the caller removes them."""

    async def serve(self, request: Leg) -> AsyncIterator[int]:
        """Yield the number of new tokens of each message, until the request has ended.

        Raises:
            Unavailable: no replica has accepted it, or too many have failed. Suspect: under it.
        """
        stream = self._open(request.leg("arrival"))
        end_s = time.monotonic() + self.limits.request_s
        try:
            while True:
                try:
                    if not stream.replica:
                        await self._accept(stream)
                    left_s = min(self.limits.stall_s, end_s - time.monotonic())
                    before, was_thinking = request.generated_tokens, request.is_thinking
                    emitted = await stream.next(Emitted, max(0.0, left_s))
                    num_new = request.accept(emitted)
                except BrokenLeg as error:
                    stream.response.cancel()
                    stream = self._open(self._resumed(request, stream, error, end_s))
                    continue
                yield num_new
                if request.finish:
                    return
                is_paused = emitted.finish == "paused"
                kind = self.points.reached(request, before, was_thinking) if num_new else None
                if is_paused or kind:
                    leg = request.leg(kind or "quantum", stream.replica, emitted.kv)
                    stream = await self._move(request, stream, leg, end_s, is_paused=is_paused)
        finally:
            stream.response.cancel()

    def _open(self, leg: Leg) -> _Stream:
        return _Stream(self.handle.remote, self.points.pauses(leg))

    async def _accept(self, stream: _Stream) -> None:
        stream.replica = await stream.next(str, self.limits.accept_s)
        self.replicas[stream.leg.request_id].append(stream.replica)
        # The router, which is in this process, has left its mark in the leg.
        self.counts[stream.leg.routed.decided_by if stream.leg.routed else "unknown"] += 1

    def _resumed(self, request: Leg, stream: _Stream, error: Exception, end_s: float) -> Leg:
        """Return the leg that continues after a failure, at another replica if there is one."""
        at = stream.replica or (stream.leg.routed.replica if stream.leg.routed else "")
        request.excluded |= {at} - {""}
        request.num_resumes += 1
        log.warning("%s failed at %s: %s", request.request_id, at or "no replica", error)
        if stream.replica and len(stream.leg.token_ids) == len(request.token_ids):
            request.num_silenced += 1
        if request.num_silenced > 1:
            log.error("%s ended or silenced two replicas; it is not resumed", request.request_id)
            raise Suspect(f"two failures under {request.request_id}; send another") from error
        if not at:
            raise Unavailable(
                f"no replica within {self.limits.accept_s:g} s; try again later"
            ) from error
        if request.num_resumes > self.limits.max_resumes or time.monotonic() >= end_s:
            raise Unavailable(
                f"replicas failed {request.num_resumes} times; try again later"
            ) from error
        self.counts["resumed"] += 1
        return request.leg("resumed")

    async def _move(
        self, request: Leg, stream: _Stream, leg: Leg, end_s: float, *, is_paused: bool
    ) -> _Stream:
        """Return the stream behind a move point, in the replica that the placement chooses.

        A leg that has not paused continues until another replica has accepted, so a failed move
        loses nothing. After a pause, a replica must accept in half of the KV's lease, which it
        then prolongs itself. Otherwise the context is computed again.
        """
        wait_s = self.limits.accept_s
        if is_paused:
            stream.response.cancel()
            wait_s = min(wait_s, leg.kv["lease_s"] / 2) if leg.kv else wait_s
        leg, new = self.points.pauses(leg), None
        last_s = time.monotonic() + (wait_s - 2 * _ASK_AGAIN_S if is_paused else 0)
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    async with self.handle.choose_replica(leg) as selection:
                        waits = leg.routed is not None and leg.routed.decided_by == "waits"
                        if not waits or time.monotonic() >= last_s:
                            if is_paused or selection.replica_id != stream.replica:
                                new = _Stream(self.handle.dispatch, selection, leg)
                                await self._accept(new)
                            break
                    await asyncio.sleep(_ASK_AGAIN_S)
        except BaseException as error:
            if new is not None:
                new.response.cancel()
            if not isinstance(error, _FAILURES):
                raise
            log.warning("%s is not handed over: %s", leg.request_id, error)
            self.counts["hand_over_failed"] += 1
            if not is_paused:
                return stream
            # Where no replica has accepted, none has failed.
            again = self._resumed(request, new, error, end_s) if new else None
            return self._open(again or request.leg("resumed"))
        if new is not None and not is_paused:
            stream.response.cancel()
        has_moved = new is not None and new.replica != stream.replica
        self.counts["moved" if has_moved else "stayed"] += 1
        self.counts["with_kv"] += has_moved and leg.kv is not None
        return new or stream
