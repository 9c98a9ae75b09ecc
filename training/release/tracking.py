"""MLflow runs and the model registry; in `export/`, spans join a trace of MLflow that is active.

A store is a folder, `<root>/mlflow.db` (sqlite) and `<root>/artifacts`, or a tracking server.
`mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db` shows a folder.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlparse
from urllib.request import url2pathname

import pandas as pd
from mlflow.artifacts import download_artifacts
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from lengthwise.bundle import ModelBundle
from lengthwise.errors import BundleError, ConfigError, raised_as
from lengthwise.mlflow_store import CHAMPION, NOTE, TRACKING_URI, find_store
from scoring_service.ranker import pyfunc

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger

    from training.data.labelled_splits import LabelledSplits

EXPERIMENT: Final = "lengthwise"
DESCRIPTION: Final = "Length rankers that `python -m training` trained and calibrated."

CHECKPOINT_MODEL: Final = "training.ranker.inference"
"""Loader of a checkpoint as a model of MLflow."""
_EXTRAS: Final = {pyfunc.__name__: "serve", CHECKPOINT_MODEL: "train"}

logger = logging.getLogger(__name__)


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Context after which MLflow's change of the tracking address is undone."""
    before = os.environ.get(TRACKING_URI)
    try:
        yield
    finally:
        os.environ.pop(TRACKING_URI, None)
        os.environ.update({} if before is None else {TRACKING_URI: before})


class Store:
    """An MLflow store: its runs and its model registry.

    As a context manager it raises each error of MLflow as a ConfigError of one line.
    """

    def __init__(self, root: str | Path, *, create: bool = False) -> None:
        self.store = find_store(root)
        self.client = self.store.open(create=create)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MlflowException):
            raise self.store.unusable(error) from error

    def folder(self, address: str) -> Path:
        """Return the path of an artefact; that of a server is downloaded until exit.

        Raises:
            BundleError: the artefact does not exist.
        """
        if (parts := urlparse(address)).scheme in ("", "file"):
            return Path(url2pathname(parts.path))
        place = tempfile.mkdtemp(prefix="lengthwise-artifact-")
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        text = f"{address} cannot be had from {self.store}: {{}}"
        with raised_as(BundleError, text, MlflowException, OSError):
            return Path(download_artifacts(address, dst_path=place, tracking_uri=self.store.uri))

    def logged_folder(self, run_id: str, name: str) -> Path:
        text = f"{self.store} has no run {run_id!r}; `mlflow ui` shows them"
        with raised_as(ConfigError, text, MlflowException):
            run = self.client.get_run(run_id)
        if not self.client.list_artifacts(run_id, name):
            raise BundleError(f"run {run_id} has no {name}: it did not finish; choose another run")
        return self.folder(f"{run.info.artifact_uri}/{name}")

    def version(self, name: str, version: str) -> ModelVersion:
        """Return one version of a model, by number or `champion`."""
        by_alias, client = version == CHAMPION, self.client
        find = client.get_model_version_by_alias if by_alias else client.get_model_version
        try:
            return find(name, version)
        except MlflowException as error:
            found = client.search_model_versions(max_results=10_000)
            known = ", ".join(f"{each.name}/{each.version}" for each in found) or "none"
            raise ConfigError(
                f"no model {name!r} of version {version!r} in the registry; it has {known}"
            ) from error

    def champion(self, name: str) -> ModelBundle | None:
        """Return the champion's bundle; None if the model has no champion yet.

        Raises:
            BundleError: the bundle in the registry is missing or damaged.
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


class Tracker(Store):
    """One MLflow run in one store."""

    def __init__(self, root: str | Path, *, run_name: str, run_id: str | None = None) -> None:
        super().__init__(root, create=True)
        with self.store.errors_in_one_line():
            if run_id is None:
                self.run_id = self.store.start_run(self.client, EXPERIMENT, DESCRIPTION, run_name)
            else:
                self.client.update_run(run_id, status="RUNNING")
                self.run_id = run_id

    def lightning_logger(self) -> MLFlowLogger:
        """Return a Lightning logger that writes into this run."""
        from lightning.pytorch.loggers import MLFlowLogger

        with _environment_kept():
            made = MLFlowLogger(EXPERIMENT, tracking_uri=self.store.uri, run_id=self.run_id)
            _ = made.experiment  # It opens the store.
            return made

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log settings, flattened with dots."""
        (flat,) = pd.json_normalize(dict(params)).to_dict("records")
        self.client.log_batch(self.run_id, params=[Param(str(k), str(v)) for k, v in flat.items()])

    def log_data(self, labelled: LabelledSplits) -> None:
        """Log the data set of the run as its input, and mark a run on invented data."""
        data, splits, card = labelled.data, labelled.splits, labelled.data.card
        sizes = {name: len(getattr(splits, name)) for name in ("train", "val", "test")}
        source = {"origin": data.origin, "source": card.source, "commit": card.commit}
        self.log_input(card.id, card.sha256 or card.digest, "training", source, sizes)
        self.describe(
            f"{sizes['train']} training prompts of {card.id}, {sizes['test']} test prompts",
        )

    def log_input(
        self,
        name: str,
        digest: str,
        context: str,
        source: Mapping[str, Any],
        profile: Mapping[str, Any] | None = None,
    ) -> None:
        """Log a table as an input of the run, and its name and SHA-256 as tags.

        `context` is its purpose, such as training; `profile` counts its rows.
        """
        data = Dataset(
            name, digest[:36], "lengthwise", json.dumps(source), profile=json.dumps(profile or {})
        )
        tags = [InputTag("mlflow.data.context", context)]
        self.client.log_inputs(self.run_id, [DatasetInput(data, tags)])
        self.set_tags({"dataset": name, "data_sha256": digest})

    def describe(self, text: str) -> None:
        """Set the description of the run."""
        self.set_tags({NOTE: text})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run; empty ones are left out."""
        self.client.log_batch(self.run_id, tags=[RunTag(k, v) for k, v in tags.items() if v])

    def log_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Log the defined numbers of a result."""
        now_ms = int(time.time() * 1000)
        points = [
            Metric(key, value, now_ms, 0)
            for key, value in metrics.items()
            if isinstance(value, int | float) and not math.isnan(value)
        ]
        self.client.log_batch(self.run_id, metrics=points)

    def log_file(self, path: Path) -> None:
        self.client.log_artifact(self.run_id, str(path))

    def log_folder(self, folder: Path, name: str) -> None:
        """Log a folder of files as the artefact `name`."""
        self.client.log_artifacts(self.run_id, str(folder), name)

    def log_table(self, name: str, table: pd.DataFrame) -> None:
        """Log a table as a JSON file, which MLflow shows among the evaluations of the run."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's own, of pandas
            self.client.log_table(self.run_id, table, name)

    @contextmanager
    def trace(self, name: str, **inputs: Any) -> Iterator[None]:
        """Context of a trace of MLflow in this run; scoring in it adds its steps."""
        import mlflow

        with _environment_kept(), self.store.errors_in_one_line():
            mlflow.set_tracking_uri(self.store.uri)
            mlflow.set_experiment(EXPERIMENT)
            with mlflow.start_run(self.run_id), mlflow.start_span(name) as span:
                span.set_inputs(inputs)
                yield
            mlflow.flush_trace_async_logging()

    def log_model_files(
        self, name: str, prompts: Sequence[str], loader_module: str = pyfunc.__name__
    ) -> None:
        """Log what makes the artefact `name`, a bundle or a checkpoint, a model of MLflow.

        These are the MLmodel file, the signature, and `prompts` as an example.
        """
        with tempfile.TemporaryDirectory() as work, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow warns of its own type hints when imported
            import mlflow.pyfunc
            from mlflow.models import ModelSignature
            from mlflow.types import ColSpec, DataType, Schema

            mlflow.pyfunc.save_model(
                Path(work, "model"),
                loader_module=loader_module,
                signature=ModelSignature(
                    inputs=Schema([ColSpec(DataType.string, pyfunc.PROMPT)]),
                    outputs=Schema([ColSpec(DataType.double, pyfunc.SCORE)]),
                ),
                input_example=pd.DataFrame({pyfunc.PROMPT: list(prompts)}),
                pip_requirements=[f"lengthwise[{_EXTRAS[loader_module]}]", "pandas"],
            )
            self.log_folder(Path(work, "model"), name)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            with self.store.errors_in_one_line():
                self.client.set_terminated(self.run_id)
            return
        # A resumed run undoes it.
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        try:
            self.client.set_terminated(self.run_id, status)
        except (MlflowException, OSError) as second:  # The first one is the reason.
            reason = str(second).splitlines()[0]
            logger.warning("run %s could not be marked %s: %s", self.run_id, status, reason)
        super().__exit__(kind, error, trace)

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
