"""Workloads: arrays, traces and settings come in; `Requests` with arrivals and scores go out.

Start with `requests.py`, then `workload.py`.
"""
