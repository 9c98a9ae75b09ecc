"""Splits and settings -> a trained scorer: encoder, losses, batches and the training loop.

Start with `learning.py`, then `module.py` and `losses.py`.
"""
