"""Trained rankers -> bundles, MLflow runs, registered versions and the champion.

Start with `publish.py`, then `tracking.py`.
"""
