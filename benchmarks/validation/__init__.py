"""Simulated against real: recordings, fits of step times, and errors.

Start with `step_fit.py`.
"""
