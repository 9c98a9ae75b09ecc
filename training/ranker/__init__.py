"""Splits and settings -> a trained scorer: encoder, losses, batches and the training loop.

Start with `training_loop.py`, then `module.py` and `losses.py`.
"""
