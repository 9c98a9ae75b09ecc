"""The headline results of the papers beside ours.

Start with `command.py`; there is one file per paper.
"""
