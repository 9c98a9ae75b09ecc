"""Placements on many real engines: requests in legs, decisions on reports of replicas.

In: requests, reports of replicas. Out: a replica for each leg. Start with `legs.py`, then
`routing.py`. Names no engine.
"""
