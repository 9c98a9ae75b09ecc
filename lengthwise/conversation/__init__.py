"""The conversation of a request, and its description for rankers.

Start with `turns.py` (body -> turns), then `description.py` (turns -> one short text).
"""
