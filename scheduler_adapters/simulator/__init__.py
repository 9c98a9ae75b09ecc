"""LLM instances in virtual time: requests, a policy and an instance in, a timeline out.

Start with `simulate.py`, then `instance.py` (the limits), `engine/engine.py` (one instance) and
`latency/models.py` (how long a step takes); `compiled/loop.py` has the same rules in a numba loop.
"""
