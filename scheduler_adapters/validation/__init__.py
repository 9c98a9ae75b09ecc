"""Simulated against real: recordings, fits of step times, replays and their errors.

Start with `step_fit.py`.
"""
