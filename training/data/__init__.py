"""Tables of prompts and observed lengths -> labelled, split prompts and ranking pairs.

Start with `records.py`, then `labels.py` and `labelled_splits.py`.
"""
