"""Public repositories at pinned commits -> tables of data cards.

Start with `fetching.py`, then `layouts.py`, one function per source.
"""
