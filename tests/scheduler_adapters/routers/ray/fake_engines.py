"""Fake streaming engines whose tokens follow from the context, and a board that holds them.

A prompt of tokens is [its length, thinking tokens, all output tokens, token to hold at, key]. The
next token is a function of the last one and its position: a lost or doubled token changes the rest.
"""

import asyncio
import os
from collections import Counter, defaultdict
from copy import deepcopy

from scheduler_adapters.routers.replica_load import ReplicaLoad
from tests.scheduler_adapters.routers.test_legs import END, THINK_END

BOARD = "lengthwise-board"


def next_token(context, thinking, total, prompt_tokens):
    number = len(context) - prompt_tokens + 1
    if number == total:
        return END
    return THINK_END if number == thinking else 10 + (context[-1] * 7 + len(context) * 13) % 9973


def prompt(key, *, thinking=0, total=20, hold_at=0, length=5):
    return [length, thinking, total, hold_at, key, *[9] * (length - 5)]


def expected(prompt_ids):
    tokens = list(prompt_ids)
    while len(tokens) == len(prompt_ids) or tokens[-1] != END:
        tokens.append(next_token(tokens, *prompt_ids[1:3], len(prompt_ids)))
    return tokens[len(prompt_ids) :]


class Codec:
    """Tokens as numbers in text."""

    stop_token_ids, vocabulary = (END,), 10_000

    def __init__(self, model):
        pass

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decoder(self):
        return "{} ".format


class Board:
    """Deeds of engines, and when they may continue; a named actor."""

    def __init__(self):
        self.places, self.legs, self.held, self.reports, self.gateways = {}, [], {}, {}, {}
        self.released, self.num_reports = defaultdict(asyncio.Event), Counter()

    async def state(self):
        # Ray serializes the answer in another thread.
        names = ("places", "legs", "held", "gateways")
        return deepcopy({name: getattr(self, name) for name in names})

    async def begin(self, replica, *place):
        self.places[replica] = place

    async def leg(self, gateway, key, *leg):
        self.gateways[key] = gateway
        self.legs.append((key, *leg))

    async def hold(self, key, replica):
        """Hold a request until it is released; a released one is not held again."""
        if not self.released[key].is_set():
            self.held[key] = replica
        await self.released[key].wait()

    async def release(self, keys):
        _ = [self.released[key].set() for key in keys]

    async def set_reports(self, reports):
        """Set changes of reports; return when each of these replicas has made three reports."""
        self.reports, self.num_reports = reports, Counter()
        while any(self.num_reports[replica] < 3 for replica in reports):
            await asyncio.sleep(0.02)

    async def report_of(self, replica):
        self.num_reports[replica] += 1
        return self.reports.get(replica, {})


def fake_engine():
    """Return the class of a deployment."""
    import ray

    from scheduler_adapters.routers.ray.replica import RayReplica

    class FakeEngine(RayReplica):
        def __init__(self):
            super().__init__(ReplicaLoad(total_blocks=1000))
            self.board = ray.get_actor(BOARD, namespace="tests")
            node = ray.get_runtime_context().get_node_id()
            ray.get(self.board.begin.remote(self.name, os.getpid(), node))

        async def record_routing_stats(self):
            change = await self.board.report_of.remote(self.name)
            return await super().record_routing_stats() | change  # None: fails

        async def tokens(self, leg):
            _, thinking, total, hold_at, key = leg.token_ids[:5]
            context = list(leg.token_ids)
            deed = key, self.name, leg.kind, leg.routed.decided_by
            await self.board.leg.remote(leg.gateway, *deed)
            for left in reversed(range(leg.max_tokens)):
                if hold_at and len(context) - leg.prompt_tokens == hold_at:
                    held = asyncio.wrap_future(self.board.hold.remote(key, self.name).future())
                    while not (await asyncio.wait([held], timeout=0.5))[0]:
                        yield [], None  # a held replica is not a silent one
                await asyncio.sleep(0.002)
                context.append(next_token(context, thinking, total, leg.prompt_tokens))
                finish = None if left else "length"
                if len(context) - len(leg.token_ids) == leg.pause_after:
                    finish = "paused"
                if context[-1] in leg.stop_token_ids:
                    finish = "stop"
                yield [context[-1]], finish, {"lease_s": 600}
                if finish:
                    return

    return FakeEngine
