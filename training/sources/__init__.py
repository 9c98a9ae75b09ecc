"""Public repositories -> tables of data cards: files at a pinned commit come in, tables go out.

Start with `fetching.py`, then `layouts.py`, one function per source.
"""
