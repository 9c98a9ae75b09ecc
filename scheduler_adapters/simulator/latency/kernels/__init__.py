"""Step times from measured kernels, layers and phases.

Start with `measured.py`, which names the instances.
"""
