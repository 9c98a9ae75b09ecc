"""Requests, a policy and an instance in; the timeline of the compiled engine out, or None.

Start with `loop.py`: the rules of the simulated engine, compiled with numba. `run.py` calls it.
"""
