"""MLflow runs, figures and the model registry; no other file of this package calls MLflow.

A store is a folder, `<root>/mlflow.db` (sqlite) and `<root>/artifacts`, or a tracking server. To
look at a folder: `mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db`.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlparse
from urllib.request import url2pathname

from mlflow.artifacts import download_artifacts
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from lengthwise.bundle import ModelBundle
from lengthwise.errors import BundleError, ConfigError
from lengthwise.mlflow_store import NOTE, TRACKING_URI, find_store

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger
    from matplotlib.figure import Figure

    from training.data.labelled_splits import LabelledSplits

EXPERIMENT: Final = "lengthwise"
DESCRIPTION: Final = "Length rankers that `python -m training` trained, monitored and calibrated."
CHAMPION: Final = "champion"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One MLflow run of a list."""

    run_id: str
    name: str
    status: str
    started: str
    """ISO 8601, UTC."""
    artifacts: str
    """Address of the folder of its artefacts."""
    tags: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVersion:
    """One version of a registered model."""

    name: str
    version: str
    run_id: str
    bundle: str
    """Address of its bundle."""
    tags: Mapping[str, str]
    is_champion: bool


class Store:
    """An MLflow store: its runs and its model registry. In a `with`, its errors are one line."""

    def __init__(self, root: str | Path, *, create: bool = False) -> None:
        """Open the store at `root`, a folder or a server."""
        self.store = find_store(root)
        self.client = self.store.open(create=create)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MlflowException):
            raise self.store.unusable(error) from error

    def folder(self, address: str) -> Path:
        """Return an artefact as a folder or file here; that of a server is brought until exit.

        Raises:
            BundleError: the artefact is not there.
        """
        if (local := _path_of(address)) is not None:
            return local
        place = tempfile.mkdtemp(prefix="lengthwise-artifact-")
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        try:
            return Path(download_artifacts(address, dst_path=place, tracking_uri=self.store.uri))
        except (MlflowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise BundleError(f"{address} cannot be had from {self.store}: {reason}") from error

    def has(self, run_id: str, name: str) -> bool:
        """Return whether a run has a folder of artefacts of that name."""
        return bool(self.client.list_artifacts(run_id, name))

    def runs(self) -> list[Run]:
        """Return every run, the newest first."""
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            return []
        found = self.client.search_runs([experiment.experiment_id], max_results=50_000)
        return [_run(run) for run in found]

    def run(self, run_id: str) -> Run:
        """Return one run by its id."""
        try:
            return _run(self.client.get_run(run_id))
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
            return ModelBundle.load(self.folder(version.source))
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
                bundle=version.source,
                tags=dict(version.tags),
                is_champion=str(aliases.get(CHAMPION)) == str(version.version),
            )
            for version in sorted(found, key=lambda v: -int(v.version))
        ]


class Tracker(Store):
    """One MLflow run in one store."""

    def __init__(
        self,
        root: str | Path,
        *,
        run_name: str,
        run_id: str | None = None,
        system_metrics: bool = True,
    ) -> None:
        """Open the store at `root`, made if absent, and start a run or continue `run_id`.

        Args:
            system_metrics: log CPU, memory, disk, network and GPU use every 10 s.
        """
        super().__init__(root, create=True)
        with self.store.errors_in_one_line():
            if run_id is None:
                self.run_id = self.store.start_run(self.client, EXPERIMENT, DESCRIPTION, run_name)
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

        before = os.environ.get(TRACKING_URI)
        made = MLFlowLogger(EXPERIMENT, tracking_uri=self.store.uri, run_id=self.run_id)
        _ = made.experiment  # It opens the store and, through MLflow, changes the environment.
        os.environ.pop(TRACKING_URI, None)
        os.environ.update({} if before is None else {TRACKING_URI: before})
        return made

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log settings, flattened with dots."""
        flat = [Param(key, str(value)) for key, value in _flatten(params).items()]
        self.client.log_batch(self.run_id, params=flat)

    def log_data(self, labelled: LabelledSplits) -> None:
        """Log the data set that is used as an input of the run, and mark a run on invented data.

        It may be another one than the settings ask for: without a data folder it is the synthetic
        one.
        """
        data, splits = labelled.data, labelled.splits
        sizes = {name: len(getattr(splits, name)) for name in ("train", "val", "test")}
        source = {"origin": data.origin, "source": data.card.source, "commit": data.card.commit}
        card = data.card
        self.log_input(card.id, card.sha256 or card.digest, "training", source, sizes)
        self.describe(
            f"{sizes['train']} training prompts of {card.id}, {sizes['test']} test prompts",
            banner=labelled.banner,
        )

    def log_input(
        self,
        name: str,
        digest: str,
        context: str,
        source: Mapping[str, Any],
        profile: Mapping[str, Any] | None = None,
    ) -> None:
        """Log data as an input of the run, and its name and checksum as tags.

        Args:
            digest: SHA-256 of the table.
            context: what the data is for, such as training or monitoring.
            profile: counts of rows.
        """
        data = Dataset(
            name, digest[:36], "lengthwise", json.dumps(source), profile=json.dumps(profile or {})
        )
        tags = [InputTag("mlflow.data.context", context)]
        self.client.log_inputs(self.run_id, [DatasetInput(data, tags)])
        self.set_tags({"dataset": name, "data_sha256": digest})

    def describe(self, text: str, *, banner: str | None = None) -> None:
        """Set the description of the run, after the warning that belongs to its figures."""
        self.set_tags({NOTE: f"**{banner}**\n\n{text}" if banner else text})
        if banner:
            self.set_tags({"warning": banner})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run; empty ones are left out."""
        given = [RunTag(key, value) for key, value in tags.items() if value]
        self.client.log_batch(self.run_id, tags=given)

    def log_metrics(self, metrics: Mapping[str, float], *, step: int = 0) -> None:
        """Log final figures, or those of one point of a curve."""
        now_ms = int(time.time() * 1000)
        points = [Metric(key, value, now_ms, step) for key, value in metrics.items()]
        self.client.log_batch(self.run_id, metrics=points)

    def log_folder(self, folder: Path, name: str) -> None:
        """Log a folder of files as the artefact `name`."""
        self.client.log_artifacts(self.run_id, str(folder), name)

    def log_figure(self, figure: Figure, name: str) -> str:
        """Log a matplotlib figure as the artefact `figures/<name>.png`; returns its place."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "figures", f"{name}.png")
            path.parent.mkdir(parents=True)
            figure.savefig(path, dpi=120, bbox_inches="tight")
            self.client.log_artifacts(self.run_id, folder)
        address = f"{self.client.get_run(self.run_id).info.artifact_uri}/figures/{name}.png"
        return str(_path_of(address) or address)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the run as the block ends: FINISHED, KILLED by Ctrl-C, or FAILED."""
        if error is None:
            with self.store.errors_in_one_line():
                self.finish()
            return
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        try:
            self.finish(status)
        except (MlflowException, OSError) as second:  # The first one is the reason.
            reason = str(second).splitlines()[0]
            logger.warning("run %s could not be marked %s: %s", self.run_id, status, reason)
        super().__exit__(kind, error, trace)

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
            about = f"Orders prompts by the length of a response. {DESCRIPTION}"
            self.client.create_registered_model(name, description=about)
        source = f"{self.client.get_run(self.run_id).info.artifact_uri}/{bundle}"
        version = self.client.create_model_version(
            name, source, self.run_id, tags=dict(tags), description=description or None
        )
        return str(version.version)


def _run(run: Any) -> Run:
    info = run.info
    return Run(
        run_id=info.run_id,
        name=info.run_name or "",
        status=info.status,
        started=datetime.fromtimestamp(info.start_time / 1000, UTC).isoformat(timespec="seconds"),
        artifacts=info.artifact_uri,
        tags=dict(run.data.tags),
    )


def _path_of(uri: str) -> Path | None:
    """Return the local path of a `file:` URI; None for an artefact that is elsewhere."""
    parts = urlparse(uri)
    return Path(url2pathname(parts.path)) if parts.scheme in ("", "file") else None


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
