"""Many simulated instances under one clock: requests, a placement and instances in, a run out.

Start with `run.py`, then `cluster.py` (the clock and its events) and `moves.py` (requests that go
from one instance to another).
"""

from scheduler_adapters.simulator.cluster.cluster import overrides
from scheduler_adapters.simulator.cluster.run import ClusterRun, simulate_cluster

__all__ = ["ClusterRun", "overrides", "simulate_cluster"]
