"""Place of an MLflow store: a folder (sqlite in mlflow.db, artefacts beside it) or a server.

MLflow itself is not imported here, so that a service without it can look up a bundle. With it:

    store = MlflowStore("mlruns")
    store.make_folder()
    with store.errors_in_one_line(MlflowException):
        client = MlflowClient(store.uri)
        experiment = store.experiment_id(client, "lengthwise")
"""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoring_service.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MlflowStore:
    """An MLflow store by its place: a folder, or the http(s) address of a server."""

    place: str | Path

    @property
    def is_server(self) -> bool:
        return str(self.place).startswith(("http://", "https://"))

    @property
    def root(self) -> Path:
        """The folder of a local store."""
        return Path(self.place).resolve()

    @property
    def database(self) -> Path:
        """The database of a local store."""
        return self.root / "mlflow.db"

    @property
    def uri(self) -> str:
        """The tracking URI that MLflow takes."""
        return str(self.place).rstrip("/") if self.is_server else f"sqlite:///{self.database}"

    def __str__(self) -> str:
        return self.uri if self.is_server else str(self.root)

    def make_folder(self) -> None:
        """Make the folder of a local store. Raises ConfigError if it cannot be written."""
        if self.is_server:
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as file:
                file.write(b"\0" * 65536)
        except OSError as error:
            raise ConfigError(
                f"{self} cannot be written ({error.strerror}); choose another --mlruns-dir"
            ) from error

    def require(self) -> None:
        """Raises ConfigError if the folder of a local store holds none."""
        if not self.is_server and not self.database.is_file():
            raise ConfigError(
                f"{self} holds no MLflow store; choose another --mlruns-dir, or make one with "
                "`python -m training fit`"
            )

    def experiment_id(self, client: Any, name: str) -> str:
        """Id of an experiment, made where there is none; its artefacts lie beside the database."""
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        if self.is_server:
            return str(client.create_experiment(name))
        artifacts = (self.root / "artifacts").as_uri()
        return str(client.create_experiment(name, artifact_location=artifacts))

    @contextmanager
    def errors_in_one_line(self, *foreign: type[Exception]) -> Iterator[None]:
        """MLflow's errors, whose classes are given, and the disk's as ConfigError."""
        expected: tuple[type[Exception], ...] = (*foreign, OSError)
        try:
            yield
        except expected as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"MLflow store {self} cannot be used: {reason}; choose another --mlruns-dir"
            ) from error


def quiet_mlflow() -> None:
    """Keep MLflow off the network and its helpers out of the log; call it before the import."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.system_metrics"):
        logging.getLogger(name).setLevel(logging.WARNING)
