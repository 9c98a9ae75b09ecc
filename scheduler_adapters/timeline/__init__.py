"""Records that come out: one timeline for all engines, step records, metrics, logs and traces.

Start with `timeline.py`, then `metrics.py`.
"""
