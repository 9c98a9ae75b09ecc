"""Ray Serve's request router that decides by a placement.

Each handle has a router, with bookings of its own. `gateway.engine_options` sets it. Written
for Ray 2.60, where the interface is alpha.
"""

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from scheduler_adapters.routers.legs import Leg
from scheduler_adapters.routers.routing import MovingConfig, Routing


# Without FIFOMixin: it would send the next request in line to a replica chosen for another one.
class PlacementRouter(RequestRouter):  # type: ignore[misc]
    """Sends each `Leg` to the replica chosen by a placement, other calls to the shortest queue."""

    def initialize_state(self, **settings: Any) -> None:
        """Make the routing of a `MovingConfig` with these fields."""
        config = MovingConfig(**settings)
        self.routing = Routing(
            config.load(),
            roles=config.roles,
            max_stale_s=config.max_stale_s,
            queue_length=self._queue_length,
        )
        self._listed: list[RunningReplica] | None = None
        self._by_name: dict[str, RunningReplica] = {}
        self._names: list[str] = []

    def _queue_length(self, name: str) -> int | None:
        return self.replica_queue_len_cache.get(self._by_name[name].replica_id)  # type: ignore[no-any-return]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take new replicas and new reports; Ray calls this whenever a report has changed."""
        super().update_replicas(replicas)
        self.routing.update({one.replica_id.unique_id: one.routing_stats for one in replicas})

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica, then all others in case that it does not accept."""
        if candidate_replicas is not self._listed:
            self._listed = candidate_replicas
            self._by_name = {one.replica_id.unique_id: one for one in candidate_replicas}
            self._names = list(self._by_name)
        leg = None
        if pending_request is not None:
            # Otherwise Ray repeats this call without a pause while all replicas are full.
            pending_request.routing_context.should_backoff = True
            leg = next(iter(pending_request.args), None)
        if pending_request is not None and isinstance(leg, Leg):
            call = pending_request.metadata.internal_request_id
            chosen = self.routing.choose(call, leg, self._names)
        else:
            chosen = self.routing.shortest_queue(self._names)
        return [[self._by_name[chosen]], candidate_replicas]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Forget the booking of a call that has ended, in any way."""
        self.routing.views.cancel(internal_request_id)
