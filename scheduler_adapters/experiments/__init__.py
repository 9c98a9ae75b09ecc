"""Experiments: requests in, timelines out, tables and figures from those.

Start with `workload.py` (the requests), `timeline.py` (what happened to each), `metrics.py` (what
that means). `simulate.py` is the smallest entry point; the others run several simulations.
"""
