"""The rules of the simulated engine, compiled with numba for the policies that allow it.

Start with `loop.py`.
"""
