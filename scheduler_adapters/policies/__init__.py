"""One file per scheduler; each is a `Policy` of a few lines.

Start with `fcfs.py`, then `shortest_predicted.py`. Wrappers (`starvation_guard.py`) change the
ranks of another policy: wrap, don't subclass.
"""
