"""The next step of a real engine, planned by the ranks of a policy. Names no engine.

Start with `request_tracker.py`: it ranks the requests of an engine. `ranked_queue.py` orders those
that wait, `residents.py` keeps the others, `planner.py` plans the steps.
"""
