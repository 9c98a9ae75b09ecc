"""Timelines: events of an engine in; one record for all engines, metrics and logs out.

Start with `timeline.py`, then `latency_metrics.py`.
"""
