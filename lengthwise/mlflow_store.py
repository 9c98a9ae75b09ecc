"""MLflow stores: a folder (sqlite in mlflow.db, artefacts beside it) or a server.

    store = find_store("mlruns")
    client = store.open(create=True)
    with store.errors_in_one_line():
        run_id = store.start_run(client, "lengthwise", "rankers", "demo")

MLflow is imported by `open` only, so that a service without MLflow can find a bundle.
"""

import logging
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lengthwise import __version__
from lengthwise.addresses import shown
from lengthwise.errors import ConfigError, raised_as

DEFAULT: Final = "mlruns"
TRACKING_URI: Final = "MLFLOW_TRACKING_URI"
CHAMPION: Final = "champion"
"""Alias of the version that serves."""
NOTE: Final = "mlflow.note.content"
"""Tag that MLflow shows as the description."""


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
        return Path(self.place).resolve()

    @property
    def database(self) -> Path:
        return self.root / "mlflow.db"

    @property
    def uri(self) -> str:
        """Tracking URI for MLflow."""
        return f"sqlite:///{self.database}" if self.is_folder else str(self.place).rstrip("/")

    def __str__(self) -> str:
        return str(self.root) if self.is_folder else self.uri

    def require(self) -> None:
        """Raise ConfigError if the folder of a local store has no database."""
        if self.is_folder and not self.database.is_file():
            raise ConfigError(
                f"{self} holds no MLflow store; choose another --mlruns-dir, or make one with "
                "`python -m training fit`"
            )

    def make_folder(self) -> None:
        """Make the folder of a local store. Raises ConfigError if it cannot be written."""
        text = f"{self} cannot be written ({{}}); choose another --mlruns-dir"
        if self.is_folder:
            with raised_as(ConfigError, text, OSError):
                self.root.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.root) as file:
                    file.write(b"\0" * 65536)

    def open(self, *, create: bool = False) -> Any:
        """Return an MlflowClient of the store; `create` makes a local store that is absent.

        Raises ConfigError: no such store, or MLflow or the disk refuses it.
        """
        if create:
            self.make_folder()
        else:
            self.require()
        quiet_mlflow()
        from mlflow import MlflowClient

        with self.errors_in_one_line():
            client = MlflowClient(self.uri, registry_uri=self.uri)
            client.search_experiments(max_results=1)  # Opens the database.
        return client

    def start_run(
        self, client: Any, experiment: str, description: str, name: str, **tags: str
    ) -> str:
        """Start a run with the tags of this process and `tags`; returns its id."""
        if (found := client.get_experiment_by_name(experiment)) is not None:
            number = found.experiment_id
        else:
            own = {"mlflow.experimentKind": "custom_model_development", NOTE: description}
            artifacts = (self.root / "artifacts").as_uri() if self.is_folder else None
            number = client.create_experiment(experiment, artifact_location=artifacts, tags=own)
        return str(client.create_run(number, run_name=name, tags=tags_of_run() | tags).info.run_id)

    @contextmanager
    def errors_in_one_line(self) -> Iterator[None]:
        """Context in which errors of MLflow and of the disk become ConfigError."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            raise self.unusable(error) from error

    def unusable(self, error: Exception) -> ConfigError:
        """Return the error of a store that does not work, with MLflow's reason."""
        reason = str(error).splitlines()[0]
        return ConfigError(
            f"MLflow store {shown(str(self))} cannot be used: {reason}; choose another --mlruns-dir"
        )


def find_store(place: str | Path) -> MlflowStore:
    """Return the store at a place; $MLFLOW_TRACKING_URI replaces the default place."""
    named = os.environ.get(TRACKING_URI)
    return MlflowStore(named if named and str(place) == DEFAULT else place)


def tags_of_run() -> dict[str, str]:
    """Return the command of this process, its version and its commit, as tags of a run.

    The commit is absent unless this file is part of a git checkout.
    """
    here = Path(__file__)
    words = ["git", "-C", str(here.parent), "rev-parse", "HEAD", f"HEAD:./{here.name}"]
    commit = ""
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
        commit = found.stdout.split()[0]
    tags = {
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": sys.argv[0],
        "mlflow.source.git.commit": commit,
        "command": shlex.join(sys.argv)[:5000],  # MLflow's limit
        "version": __version__,
    }
    return {key: value for key, value in tags.items() if value}


def quiet_mlflow() -> None:
    """Keep MLflow off the network and its helpers out of the log; call before its import."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # --json is one line
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.system_metrics", "mlflow.pyfunc"):
        logging.getLogger(name).setLevel(logging.WARNING)
