"""One file per scheduler: a request's view as input, its rank as output.

Start with `fcfs.py`, `shortest_predicted.py`. `fair_shares.py` wraps others.
"""
