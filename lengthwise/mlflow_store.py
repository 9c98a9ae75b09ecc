"""Place of an MLflow store: a folder (sqlite in mlflow.db, artefacts beside it) or a server.

MLflow itself is not imported here, so that a service without it can look up a bundle. With it:

    store = find_store("mlruns")
    store.make_folder()
    with store.errors_in_one_line(MlflowException):
        client = MlflowClient(store.uri)
        experiment = store.experiment_id(client, "lengthwise", "rankers")
        client.create_run(experiment, tags=tags_of_run())
"""

import importlib.metadata
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lengthwise.errors import ConfigError

DEFAULT: Final = "mlruns"
TRACKING_URI: Final = "MLFLOW_TRACKING_URI"
_KIND: Final = "mlflow.experimentKind"


@dataclass(frozen=True, slots=True)
class MlflowStore:
    """An MLflow store by its place: a folder, the http(s) address of a server, or another URI."""

    place: str | Path

    @property
    def is_server(self) -> bool:
        return str(self.place).startswith(("http://", "https://"))

    @property
    def is_folder(self) -> bool:
        return "://" not in str(self.place) and str(self.place) != "databricks"

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
        return f"sqlite:///{self.database}" if self.is_folder else str(self.place).rstrip("/")

    def __str__(self) -> str:
        return str(self.root) if self.is_folder else self.uri

    def make_folder(self) -> None:
        """Make the folder of a local store. Raises ConfigError if it cannot be written."""
        if not self.is_folder:
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
        if self.is_folder and not self.database.is_file():
            raise ConfigError(
                f"{self} holds no MLflow store; choose another --mlruns-dir, or make one with "
                "`python -m training fit`"
            )

    def experiment_id(self, client: Any, name: str, description: str) -> str:
        """Id of an experiment, made where there is none; its artefacts lie beside the database.

        MLflow's pages show it as one that trains models, not as one of agents and prompts.
        """
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        tags = {_KIND: "custom_model_development", "mlflow.note.content": description}
        artifacts = (self.root / "artifacts").as_uri() if self.is_folder else None
        return str(client.create_experiment(name, artifact_location=artifacts, tags=tags))

    @contextmanager
    def errors_in_one_line(self, *foreign: type[Exception]) -> Iterator[None]:
        """MLflow's errors, whose classes are given, and the disk's as ConfigError."""
        expected: tuple[type[Exception], ...] = (*foreign, OSError)
        try:
            yield
        except expected as error:
            raise self.unusable(error) from error

    def unusable(self, error: Exception) -> ConfigError:
        """The error of a store that does not work, with the reason that MLflow gave."""
        reason = str(error).splitlines()[0]
        return ConfigError(
            f"MLflow store {self} cannot be used: {reason}; choose another --mlruns-dir"
        )


def find_store(place: str | Path) -> MlflowStore:
    """The store at a place; the default place gives way to that of $MLFLOW_TRACKING_URI."""
    named = os.environ.get(TRACKING_URI)
    return MlflowStore(named if named and str(place) == DEFAULT else place)


def tags_of_run() -> dict[str, str]:
    """The command of this process, its version and commit, under MLflow's names where it has one.

    There is no commit where this file is not the one of a git checkout.
    """
    here = Path(__file__)
    words = ["git", "-C", str(here.parent), "rev-parse", "HEAD", f"HEAD:./{here.name}"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=10)
        commit = found.stdout.split()[0] if found.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    try:
        version = importlib.metadata.version("lengthwise")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    command = shlex.join(sys.argv)
    tags = {
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": command.partition(" ")[0],
        "mlflow.source.git.commit": commit,
        "command": command[:5000],  # MLflow's limit
        "version": version,
    }
    return {key: value for key, value in tags.items() if value}


def quiet_mlflow() -> None:
    """Keep MLflow off the network and its helpers out of the log; call it before the import."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # --json is one line
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.system_metrics"):
        logging.getLogger(name).setLevel(logging.WARNING)
