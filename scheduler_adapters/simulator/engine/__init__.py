"""One simulated instance, step by step.

Start with `engine.py`.
"""
