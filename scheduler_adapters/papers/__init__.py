"""Papers: their headline figures beside ours.

Start with `command.py`; there is one file per paper.
"""
