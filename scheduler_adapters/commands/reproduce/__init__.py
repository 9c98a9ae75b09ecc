"""Papers: their headline figures beside ours.

Start with `figure.py`, then `command.py`; there is one file per paper.
"""
