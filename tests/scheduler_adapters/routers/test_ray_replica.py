import asyncio
from types import SimpleNamespace

import pytest

from scheduler_adapters.routers.replica_load import ReplicaLoad
from tests.scheduler_adapters.routers.test_legs import leg

ray = pytest.importorskip("ray")
ray_replica = pytest.importorskip("scheduler_adapters.routers.ray_replica")
pytestmark = pytest.mark.ray


class Endless(ray_replica.RayReplica):
    async def tokens(self, leg):
        while True:
            await asyncio.sleep(0)
            yield [7], None


@pytest.mark.parametrize("is_read", [True, False])
def test_the_work_of_a_dead_gateway_ends_whether_its_tokens_are_read_or_not(is_read, monkeypatch):
    async def run():
        replica = Endless(ReplicaLoad(total_blocks=9))
        stream = replica.generate(leg(gateway="g"))
        read = [one async for one in stream] if is_read else [await anext(stream)]
        while replica.load.legs:
            await asyncio.sleep(0)
        return read

    rank = SimpleNamespace(rank=0)
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="x"), rank=rank)
    monkeypatch.setattr(ray.serve, "get_replica_context", lambda: context)
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: int(name))
    assert asyncio.run(run())[0] == "x"
