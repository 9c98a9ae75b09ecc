"""Workloads: from arrays, traces and settings to `Requests` with arrivals and scores.

Start with `requests.py`, then `workload.py`.
"""
