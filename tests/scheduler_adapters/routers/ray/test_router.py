"""The router with replicas that are none; the cluster is in `test_gateway.py`."""

import asyncio
from types import SimpleNamespace

import pytest

from tests.scheduler_adapters.routers.test_legs import leg
from tests.scheduler_adapters.routers.test_replica_views import REPORT

pytest.importorskip("ray")
router_module = pytest.importorskip("scheduler_adapters.routers.ray.router")
pytestmark = pytest.mark.ray


def test_a_burst_is_spread_over_replicas_that_have_not_failed_it():
    from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID

    router = router_module.PlacementRouter(DeploymentID("d"), DeploymentHandleSource.REPLICA)
    router.initialize_state(placement="pascal")
    names = [ReplicaID(name, DeploymentID("d")) for name in "abcd"]
    replicas = [SimpleNamespace(replica_id=name) for name in names]
    router.routing.update({name.unique_id: REPORT for name in names})

    async def run(call):
        one = leg(tokens=range(16), prompt_tokens=16, excluded=frozenset("a"))
        call = SimpleNamespace(internal_request_id=call)
        request = router_module.PendingRequest([one], {}, call)
        ranks = await router.choose_replicas(replicas, request)
        assert request.routing_context.should_backoff
        return ranks[0][0].replica_id.unique_id

    chosen = [asyncio.run(run(str(number))) for number in range(30)]
    assert [chosen.count(name) for name in "abcd"] == [0, 10, 10, 10]
    router.on_request_completed(names[1], "0")
    assert len(router.routing.views.replicas["b"].bookings) == 9
