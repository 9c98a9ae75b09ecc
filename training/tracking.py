"""The only place that talks to MLflow: runs, figures, and the model registry.

Everything lives under one folder: `<root>/mlflow.db` (sqlite), `<root>/artifacts`. Look at it with
`mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db`.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

# MLflow asks its maker for news at import; a training run has no business on the network.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from scoring_service.bundle import ModelBundle
from scoring_service.errors import BundleError, ConfigError

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger
    from matplotlib.figure import Figure

EXPERIMENT: Final = "lengthwise"
CHAMPION: Final = "champion"


class Tracker:
    """One MLflow run in one local store."""

    def __init__(self, root: str | Path, *, run_name: str, run_id: str | None = None) -> None:
        """Open the store under `root`, made if absent, and start a run or go on with `run_id`.

        Raises:
            ConfigError: the folder cannot be written, the disk is full, or there is no such run.
        """
        self.root = Path(root).resolve()
        _check_writable(self.root)
        self.uri = f"sqlite:///{self.root / 'mlflow.db'}"
        for name in ("alembic", "mlflow.store.db.utils"):
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            mlflow.set_tracking_uri(self.uri)
            self.client = MlflowClient(self.uri)
            experiment = self.client.get_experiment_by_name(EXPERIMENT)
            artifacts = (self.root / "artifacts").as_uri()
            experiment_id = (
                experiment.experiment_id
                if experiment
                else self.client.create_experiment(EXPERIMENT, artifact_location=artifacts)
            )
            if run_id is None:
                run_id = self.client.create_run(experiment_id, run_name=run_name).info.run_id
            else:
                self.client.update_run(run_id, status="RUNNING")
        except (MlflowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"MLflow store {self.root} cannot be used: {reason}; choose another --mlruns-dir"
            ) from error
        self.run_id: str = run_id

    def lightning_logger(self) -> MLFlowLogger:
        """A Lightning logger that writes into this run."""
        from lightning.pytorch.loggers import MLFlowLogger

        return MLFlowLogger(EXPERIMENT, tracking_uri=self.uri, run_id=self.run_id)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Settings, flattened with dots."""
        for key, value in _flatten(params).items():
            self.client.log_param(self.run_id, key, value)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Final figures."""
        for key, value in metrics.items():
            self.client.log_metric(self.run_id, key, value)

    def log_folder(self, folder: Path, name: str) -> None:
        """A folder of files as the artefact `name`."""
        self.client.log_artifacts(self.run_id, str(folder), name)

    def log_figure(self, figure: Figure, name: str) -> None:
        """A matplotlib figure as the artefact `figures/<name>.png`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{name}.png")
            figure.savefig(path, dpi=120, bbox_inches="tight")
            self.client.log_artifact(self.run_id, str(path), "figures")

    def finish(self, status: str = "FINISHED") -> None:
        """End the run: FINISHED, FAILED or KILLED (which a resumed run undoes)."""
        self.client.set_terminated(self.run_id, status=status)

    def champion(self, name: str) -> ModelBundle | None:
        """The bundle behind the alias; None where the model has no champion yet.

        Raises:
            BundleError: the registry points to a bundle that is gone or damaged.
        """
        try:
            version = self.client.get_model_version_by_alias(name, CHAMPION)
        except MlflowException:
            return None
        path = Path(version.source.removeprefix("file://"))
        try:
            return ModelBundle.load(path)
        except BundleError as error:
            raise BundleError(f"champion {name} version {version.version}: {error}") from error

    def register(self, name: str, tags: Mapping[str, str]) -> str:
        """Make this run's artefact `bundle` a new version of the model; returns the version."""
        try:
            self.client.get_registered_model(name)
        except MlflowException:
            self.client.create_registered_model(name)
        source = f"{self.client.get_run(self.run_id).info.artifact_uri}/bundle"
        version = self.client.create_model_version(name, source, self.run_id, tags=dict(tags))
        return str(version.version)

    def promote(self, name: str, version: str) -> None:
        """Let the alias point to that version."""
        self.client.set_registered_model_alias(name, CHAMPION, version)


def _check_writable(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"\0" * 65536)
    except OSError as error:
        raise ConfigError(
            f"{root} cannot be written ({error.strerror}); choose another --mlruns-dir"
        ) from error


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
