"""Placements on many real engines: the logic that names no engine and no cluster.

In: legs of requests, reports of replicas. Out: a replica for each leg. Start with `legs.py`, then
`routing.py`; `ray/` and `endpoint_picker/` serve by it.
"""
