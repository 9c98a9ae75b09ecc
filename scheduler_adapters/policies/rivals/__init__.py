"""Orders that others propose in place of a learned order, or with one.

`shortest_prompt.py` and `uniboost.py` need no prediction; `srpt.py` and the learned variant of
`uniboost.py` read predicted lengths.
"""
