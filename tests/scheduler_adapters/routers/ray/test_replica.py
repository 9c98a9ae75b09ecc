import asyncio
from types import SimpleNamespace

import pytest

from lengthwise.errors import SchedulingError
from scheduler_adapters.routers.legs import Emitted
from scheduler_adapters.routers.replica_load import ReplicaLoad
from tests.scheduler_adapters.routers.test_legs import leg

ray = pytest.importorskip("ray")
replica = pytest.importorskip("scheduler_adapters.routers.ray.replica")
pytestmark = pytest.mark.ray


class Engine(replica.RayReplica):
    """Generates until it is cancelled; a leg without tokens waits."""

    num_closed = 0

    async def tokens(self, leg):
        try:
            while leg.max_tokens:
                await asyncio.sleep(0)
                yield [7], None
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            self.num_closed += 1


@pytest.fixture
def make_replica(monkeypatch):
    rank = SimpleNamespace(rank=0)
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="x"), rank=rank)
    monkeypatch.setattr(ray.serve, "get_replica_context", lambda: context)
    monkeypatch.setattr(replica, "list_named_actors", lambda **_: [{"name": "another"}])
    return lambda: Engine(ReplicaLoad(total_blocks=9))


@pytest.mark.parametrize("is_read", [True, False])
def test_the_work_of_a_dead_gateway_ends_once_read_or_unread(is_read, make_replica, monkeypatch):
    async def run():
        replica = make_replica()
        stream = replica.generate(leg(gateway="g"))
        read = [one async for one in stream] if is_read else [await anext(stream)]
        while replica.load.legs:
            await asyncio.sleep(0)
        return read[0], replica.num_closed

    monkeypatch.setattr(replica, "_LOOK_S", 0.01)
    assert asyncio.run(run()) == ("x", 1)


def test_a_replica_with_work_and_no_progress_is_not_healthy(make_replica):
    async def run():
        replica, now_s = make_replica(), [0.0]
        replica.load.clock = lambda: now_s[0]
        await anext(stream := replica.generate(leg(max_tokens=0)))
        await replica.check_health()
        now_s[0] = 61.0
        with pytest.raises(SchedulingError, match="no message of 1 legs"):
            await replica.check_health()
        await stream.aclose()
        while replica.load.legs:
            await asyncio.sleep(0)
        await replica.check_health()

    asyncio.run(run())


def test_a_leg_that_waits_behind_others_gives_signs_of_life(make_replica, monkeypatch):
    async def run():
        replica = make_replica()
        waiting, other = replica.generate(leg(max_tokens=0)), replica.generate(leg())
        await anext(waiting)
        sign = asyncio.create_task(anext(waiting))
        # A silent engine gives none.
        assert not (await asyncio.wait([sign], timeout=0.1))[0]
        await anext(other)
        assert await asyncio.wait_for(sign, 300) == Emitted(3, ())
        await asyncio.gather(waiting.aclose(), other.aclose())

    monkeypatch.setattr(replica, "_SIGN_S", 0.01)
    asyncio.run(run())
