"""What a command found, as a run in a local MLflow store."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Final

from scoring_service.errors import ConfigError

EXPERIMENT: Final = "lengthwise-simulations"
"""Beside the training runs, in the same store."""


def log_run(
    root: Path | None,
    name: str,
    *,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    files: Sequence[Path],
) -> None:
    """Log a finished run under `root`: sqlite in mlflow.db, artefacts beside it.

    Does nothing without a `root`, or where MLflow is not installed. Metrics that are not finite are
    left out.

    Raises:
        ConfigError: the store cannot be used.
    """
    if root is None or find_spec("mlflow") is None:
        return
    # MLflow asks its maker for news at import; an experiment has no business on the network.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    root = root.resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
        experiment = client.get_experiment_by_name(EXPERIMENT)
        experiment_id = experiment and experiment.experiment_id
        if experiment_id is None:
            artifacts = (root / "artifacts").as_uri()
            experiment_id = client.create_experiment(EXPERIMENT, artifact_location=artifacts)
        now_ms = int(time.time() * 1000)
        run_id = client.create_run(experiment_id, run_name=name).info.run_id
        client.log_batch(
            run_id,
            params=[Param(key, str(value)) for key, value in params.items()],
            metrics=[Metric(k, v, now_ms, 0) for k, v in metrics.items() if isfinite(v)],
        )
        for path in files:
            client.log_artifact(run_id, str(path))
        client.set_terminated(run_id)
    except (MlflowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"MLflow store {root} cannot be used: {reason}; choose another --mlruns-dir, or null"
        ) from error
