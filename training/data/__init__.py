"""Prompts and observed lengths: records, cards, labels, splits and pairs.

Start with `records.py`, then `labels.py`.
"""
