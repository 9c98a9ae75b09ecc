"""Timelines: events of an engine come in; one record for all engines, metrics and logs go out.

Start with `timeline.py`, then `latency_metrics.py`.
"""
