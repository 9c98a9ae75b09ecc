"""One file per scheduler: a request's view as input, its rank as output.

Start with `fcfs.py`, then `shortest_predicted.py`. `starvation_guard.py` and `fair_shares.py`
wrap another policy.
"""
