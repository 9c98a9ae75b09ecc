"""Trained rankers -> bundles, MLflow runs and registered versions.

Start with `publish.py`, then `tracking.py`.
"""

from lengthwise.mlflow_store import quiet_mlflow

quiet_mlflow()  # before `tracking.py` imports MLflow
