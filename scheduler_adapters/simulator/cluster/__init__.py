"""Many simulated instances under one clock: requests, a placement and instances in, a run out.

Start with `cluster.py` (events and decisions), then `clock.py` (how far each instance has run) and
`request_migrations.py` (requests between instances).
"""

from scheduler_adapters.simulator.cluster.cluster import ClusterRun, simulate_cluster

__all__ = ["ClusterRun", "simulate_cluster"]
