"""Papers: their headline figures beside ours.

Start with `rows.py`, then `runs.py`; one module for each paper yields its rows.
"""
