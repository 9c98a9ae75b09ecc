"""MLflow runs, figures and the model registry; no other file of this package calls MLflow.

A store is a folder: `<root>/mlflow.db` (sqlite) and `<root>/artifacts`. To look at it:
`mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlparse
from urllib.request import url2pathname

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from scoring_service.bundle import BANNER, SYNTHETIC, ModelBundle
from scoring_service.errors import BundleError, ConfigError
from scoring_service.mlflow_store import MlflowStore

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger
    from matplotlib.figure import Figure

    from training.data.prepared import Prepared

EXPERIMENT: Final = "lengthwise"
CHAMPION: Final = "champion"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One MLflow run of a list."""

    run_id: str
    name: str
    status: str
    started: str
    """ISO 8601, UTC."""
    bundle: Path
    """Folder of its bundle, if it wrote one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVersion:
    """One version of a registered model."""

    name: str
    version: str
    run_id: str
    bundle: Path
    tags: Mapping[str, str]
    is_champion: bool


class Store:
    """A local MLflow store: its runs and its model registry."""

    def __init__(self, root: str | Path, *, create: bool = False) -> None:
        """Open the store under `root`."""
        self.store = MlflowStore(root)
        if create:
            self.store.make_folder()
        else:
            self.store.require()
        with self.store.errors_in_one_line(MlflowException):
            mlflow.set_tracking_uri(self.store.uri)
            self.client = MlflowClient(self.store.uri)
            self.client.search_experiments(max_results=1)  # Opens the database.

    def runs(self) -> list[Run]:
        """Return every run, the newest first."""
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            return []
        found = self.client.search_runs([experiment.experiment_id], max_results=50_000)
        return [_run(run.info) for run in found]

    def run(self, run_id: str) -> Run:
        """Return one run by its id."""
        try:
            return _run(self.client.get_run(run_id).info)
        except MlflowException as error:
            raise ConfigError(
                f"{self.store} has no run {run_id!r}; `python -m training list` shows them"
            ) from error

    def versions(self) -> list[ModelVersion]:
        """Return every version of every model, by name, the newest first."""
        names = [model.name for model in self.client.search_registered_models(max_results=1000)]
        return [version for name in sorted(names) for version in self._versions_of(name)]

    def version(self, name: str, version: str) -> ModelVersion:
        """Return one version of a model, by number or `champion`."""
        try:
            found = self._versions_of(name)
        except MlflowException as error:
            names = [model.name for model in self.client.search_registered_models()]
            raise ConfigError(
                f"the registry has no model {name!r}; it has {', '.join(sorted(names)) or 'none'}"
            ) from error
        for candidate in found:
            if version == candidate.version or (version == CHAMPION and candidate.is_champion):
                return candidate
        known = ", ".join(candidate.version for candidate in found) or "none"
        raise ConfigError(f"model {name!r} has no version {version!r}; it has {known}")

    def champion(self, name: str) -> ModelBundle | None:
        """Return the champion's bundle; None if the model has no champion yet.

        Raises:
            BundleError: the registry points to a bundle that is gone or damaged.
        """
        try:
            version = self.client.get_model_version_by_alias(name, CHAMPION)
        except MlflowException:
            return None
        try:
            return ModelBundle.load(_path_of(version.source))
        except BundleError as error:
            raise BundleError(f"champion {name} version {version.version}: {error}") from error

    def promote(self, name: str, version: str, tags: Mapping[str, str] | None = None) -> None:
        """Make that version the champion, and set tags on it."""
        for key, value in (tags or {}).items():
            self.client.set_model_version_tag(name, version, key, value)
        self.client.set_registered_model_alias(name, CHAMPION, version)

    def _versions_of(self, name: str) -> list[ModelVersion]:
        aliases = self.client.get_registered_model(name).aliases
        found = self.client.search_model_versions(f"name='{name}'", max_results=10_000)
        return [
            ModelVersion(
                name=name,
                version=str(version.version),
                run_id=version.run_id or "",
                bundle=_path_of(version.source),
                tags=dict(version.tags),
                is_champion=str(aliases.get(CHAMPION)) == str(version.version),
            )
            for version in sorted(found, key=lambda v: -int(v.version))
        ]


class Tracker(Store):
    """One MLflow run in one local store."""

    def __init__(
        self,
        root: str | Path,
        *,
        run_name: str,
        run_id: str | None = None,
        system_metrics: bool = True,
    ) -> None:
        """Open the store under `root`, made if absent, and start a run or continue `run_id`.

        Args:
            system_metrics: log CPU, memory, disk, network and GPU use every 10 s.
        """
        super().__init__(root, create=True)
        with self.store.errors_in_one_line(MlflowException):
            if run_id is None:
                experiment_id = self.store.experiment_id(self.client, EXPERIMENT)
                self.run_id = self.client.create_run(experiment_id, run_name=run_name).info.run_id
            else:
                self.client.update_run(run_id, status="RUNNING")
                self.run_id = run_id
        self._system_metrics: SystemMetricsMonitor | None = None
        if system_metrics:
            self._system_metrics = SystemMetricsMonitor(
                self.run_id, resume_logging=run_id is not None, tracking_uri=self.store.uri
            )
            self._system_metrics.start()

    def lightning_logger(self) -> MLFlowLogger:
        """Return a Lightning logger that writes into this run."""
        from lightning.pytorch.loggers import MLFlowLogger

        return MLFlowLogger(EXPERIMENT, tracking_uri=self.store.uri, run_id=self.run_id)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log settings, flattened with dots."""
        for key, value in _flatten(params).items():
            self.client.log_param(self.run_id, key, value)

    def log_data(self, prepared: Prepared) -> None:
        """Log the data set that is used as an input of the run, and mark a run on invented data.

        It may be another one than the settings ask for: without a data folder it is the synthetic
        one.
        """
        card = prepared.data.card
        source = json.dumps({"origin": prepared.data.origin, "commit": card.commit})
        data = Dataset(card.id, (card.sha256 or card.digest)[:36], "lengthwise", source)
        tags = [InputTag("mlflow.data.context", "training")]
        self.client.log_inputs(self.run_id, [DatasetInput(data, tags)])
        banner = BANNER if card.id == SYNTHETIC else ""
        tags_of_run = {
            "dataset": card.id,
            "data_sha256": card.sha256,
            "mlflow.note.content": banner,
        }
        for key, value in tags_of_run.items():
            if value:
                self.client.set_tag(self.run_id, key, value)

    def log_metrics(self, metrics: Mapping[str, float], *, step: int = 0) -> None:
        """Log final figures, or those of one point of a curve."""
        now_ms = int(time.time() * 1000)
        points = [Metric(key, value, now_ms, step) for key, value in metrics.items()]
        self.client.log_batch(self.run_id, metrics=points)

    def log_folder(self, folder: Path, name: str) -> None:
        """Log a folder of files as the artefact `name`."""
        self.client.log_artifacts(self.run_id, str(folder), name)

    def log_figure(self, figure: Figure, name: str) -> Path:
        """Log a matplotlib figure as the artefact `figures/<name>.png`; returns its path."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "figures", f"{name}.png")
            path.parent.mkdir(parents=True)
            figure.savefig(path, dpi=120, bbox_inches="tight")
            self.client.log_artifacts(self.run_id, folder)
        artifacts = _path_of(self.client.get_run(self.run_id).info.artifact_uri)
        return artifacts / path.relative_to(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the run as the block ends: FINISHED, KILLED by Ctrl-C, or FAILED."""
        failed = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self.finish("FINISHED" if error is None else failed)

    def finish(self, status: str = "FINISHED") -> None:
        """End the run: FINISHED, FAILED or KILLED (which a resumed run undoes)."""
        if self._system_metrics is not None:
            self._system_metrics.finish()
        self.client.set_terminated(self.run_id, status=status)

    def register(
        self, name: str, bundle: str, tags: Mapping[str, str], description: str = ""
    ) -> str:
        """Register that artefact of this run as a new version of the model; returns the version."""
        try:
            self.client.get_registered_model(name)
        except MlflowException:
            self.client.create_registered_model(name)
        source = f"{self.client.get_run(self.run_id).info.artifact_uri}/{bundle}"
        version = self.client.create_model_version(
            name, source, self.run_id, tags=dict(tags), description=description or None
        )
        return str(version.version)


def _run(info: Any) -> Run:
    return Run(
        run_id=info.run_id,
        name=info.run_name or "",
        status=info.status,
        started=datetime.fromtimestamp(info.start_time / 1000, UTC).isoformat(timespec="seconds"),
        bundle=_path_of(info.artifact_uri) / "bundle",
    )


def _path_of(uri: str) -> Path:
    """Return the local path of a `file:` URI."""
    return Path(url2pathname(urlparse(uri).path))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
