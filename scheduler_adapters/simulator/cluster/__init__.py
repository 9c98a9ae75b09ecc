"""Many simulated instances under one clock: requests, a placement and instances in, a run out.

Start with `run.py`, then `cluster.py` (events and decisions), `engine_group.py` (how far each
instance has run) and `request_migrations.py` (requests between instances).
"""

from scheduler_adapters.simulator.cluster.placement_calls import overrides
from scheduler_adapters.simulator.cluster.run import ClusterRun, simulate_cluster

__all__ = ["ClusterRun", "overrides", "simulate_cluster"]
