"""Placements on many real engines: Ray Serve's router, and a gateway that serves requests in legs.

In: requests of OpenAI clients, reports of replicas. Out: a replica for each leg, streamed tokens.
Start with `legs.py`, then `routing.py`, then `phase_gateway.py`.
"""
