"""The next step of a real engine, planned by the ranks of a policy. Names no engine.

Start with `planner.py`; `ranking.py` keeps the waiting requests, `residents.py` the others.
"""
