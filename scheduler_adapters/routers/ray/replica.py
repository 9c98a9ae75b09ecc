"""A replica that serves legs and publishes its load: the base class of engines on Ray Serve."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, cast

from ray import serve
from ray.exceptions import RayError
from ray.util import list_named_actors

from lengthwise.errors import SchedulingError
from scheduler_adapters.routers.legs import Emitted, Finish, Leg
from scheduler_adapters.routers.replica_load import ReplicaLoad

_LOOK_S: Final = 0.25
_SIGN_S: Final = 1.0
"""Seconds without a token of a leg after which its gateway receives a sign of life."""
_Ready = asyncio.Queue[Emitted | BaseException | None]
Tokens = tuple[Sequence[int], Finish | None] | tuple[Sequence[int], Finish | None, Any]


class RayReplica(ABC):
    """Streams the tokens of an engine, counts them, and ends the work of gateways that have died.

    Ray itself lets a replica continue after the death of its caller.
    """

    def __init__(self, load: ReplicaLoad) -> None:
        self.load = load
        context = serve.get_replica_context()
        self.name = context.replica_id.unique_id
        self.rank = {"rank": context.rank.rank}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    @abstractmethod
    def tokens(self, leg: Leg) -> AsyncIterator[Tokens]:
        """Yield the tokens of a leg; the last ones with the reason of the end.

        A leg with `pause_after` or `pauses_at_think_end` ends there with "paused", and with how
        another replica may pull its KV, if at all.
        """

    async def generate(self, leg: Leg) -> AsyncIterator[str | Emitted]:
        """Yield the name of the replica, then the tokens of a leg."""
        number = self.load.begin(leg)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._find_dead())
        ready: _Ready = asyncio.Queue()
        # A generator whose caller has died is never resumed, so the engine has a task of its own.
        self._tasks[number] = task = asyncio.create_task(self._serve(leg, number, ready))
        task.add_done_callback(partial(self._end, number, ready))
        try:
            yield self.name
            while (one := await self._next(number, ready)) is not None:
                if isinstance(one, BaseException):
                    raise one
                yield one
        finally:
            task.cancel()

    async def _next(self, number: int, ready: _Ready) -> Emitted | BaseException | None:
        """Return the next message of a leg: one without tokens while only other legs get any."""
        served = self.load.num_messages
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SIGN_S):
                    return await ready.get()
            # A leg in the queue of an engine that works is not lost. A silent engine gives no sign.
            if ready.empty() and self.load.num_messages > served:
                return Emitted(self.load.legs[number].context_tokens, ())

    async def _serve(self, leg: Leg, number: int, ready: _Ready) -> None:
        position = len(leg.token_ids)
        async with aclosing(cast(Any, self.tokens(leg))) as stream:
            async for token_ids, finish, *kv in stream:
                self.load.emitted(number, token_ids)
                ready.put_nowait(Emitted(position, token_ids, finish, *kv))
                position += len(token_ids)

    def _end(self, number: int, ready: _Ready, task: asyncio.Task[None]) -> None:
        self.load.end(number)
        del self._tasks[number]
        ready.put_nowait(None if task.cancelled() else task.exception())

    async def check_health(self) -> None:
        """Raise SchedulingError if the engine hangs; Ray calls this and restarts the replica."""
        if (load := self.load).legs and load.clock() > load.served_s + load.stall_s:
            raise SchedulingError(f"no message of {len(load.legs)} legs in {load.stall_s:g} s")

    async def record_routing_stats(self) -> dict[str, Any]:
        """Return the report for routers; called by Ray at regular times."""
        return self.load.report() | self.rank

    async def _find_dead(self) -> None:
        """Look for gateways that have died, as long as there are legs."""
        # Not with the reports: Serve's controller, which reads them, may be dead as well.
        while self.load.legs:
            gateways = {one.leg.gateway for one in self.load.legs.values()} - {""}
            with suppress(RayError):
                # Not ray.get_actor: a name in its cache may outlive the actor.
                actors = await asyncio.to_thread(list_named_actors, all_namespaces=True)
                gateways -= {one["name"] for one in actors}
                for number, one in list(self.load.legs.items()):
                    task = self._tasks[number]
                    # Cancelled a second time, the engine would not finish its clean-up.
                    if one.leg.gateway in gateways and not task.cancelling():
                        task.cancel()
            await asyncio.sleep(_LOOK_S)
