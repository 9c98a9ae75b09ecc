"""Results of a command as a run in an MLflow store."""

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Final

from lengthwise.mlflow_store import NOTE, find_store

EXPERIMENT: Final = "lengthwise-simulations"
"""Beside the training runs, in the same store."""
DESCRIPTION: Final = "Simulated and measured schedules of `python -m scheduler_adapters`."


def log_run(
    root: str | Path | None,
    name: str,
    *,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    files: Sequence[Path],
) -> None:
    """Log a finished run in the store at `root`; metrics that are not finite are left out.

    Does nothing without a `root`, or where MLflow is not installed.
    """
    if root is None or find_spec("mlflow") is None:
        return
    store = find_store(root)
    client = store.open(create=True)
    from mlflow.entities import Metric, Param

    with store.errors_in_one_line():
        now_ms = int(time.time() * 1000)
        tags = {NOTE: str(params["warning"])} if params.get("warning") else {}
        run_id = store.start_run(client, EXPERIMENT, DESCRIPTION, name, **tags)
        status = "FAILED"
        try:
            client.log_batch(
                run_id,
                params=[Param(key, str(value)) for key, value in params.items()],
                metrics=[Metric(k, v, now_ms, 0) for k, v in metrics.items() if isfinite(v)],
            )
            for path in files:
                client.log_artifact(run_id, str(path))
            status = "FINISHED"
        finally:
            client.set_terminated(run_id, status=status)
