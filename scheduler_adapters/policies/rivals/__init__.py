"""Orders that others propose in place of a learned order, or with one.

Engines have no learned ranker for `shortest_prompt.py`, `uniboost.py` and `token_counter.py`;
`srpt.py` and the learned variant of `uniboost.py` read predicted lengths.
"""
