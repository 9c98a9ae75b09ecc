"""The neural ranker: encoder, losses, data module, Lightning module and training loop.

Start with `learning.py`.
"""
