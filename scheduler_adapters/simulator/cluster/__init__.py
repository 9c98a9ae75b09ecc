"""Many simulated instances under one clock: requests, a placement and instances in, a run out.

Start with `clock.py` (the event loop), then `cluster.py` (a handler for each kind of event) and
`request_migrations.py` (requests between instances).
"""

from scheduler_adapters.simulator.cluster.cluster import ClusterRun
from scheduler_adapters.simulator.cluster.run import simulate_cluster

__all__ = ["ClusterRun", "simulate_cluster"]
