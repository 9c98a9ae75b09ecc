"""Trained rankers in MLflow: runs, bundles, the registry and its champion.

Start with `tracking.py`.
"""
