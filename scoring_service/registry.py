"""Find the bundle behind an alias of the local MLflow model registry, e.g. lengthwise@champion.

Reads the registry's database (`mlruns/mlflow.db`) directly, read-only, with two look-ups: a service
should not need MLflow's hundred packages to learn a path.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlparse
from urllib.request import url2pathname

from scoring_service.errors import BundleError, ConfigError

_SOURCE_OF_ALIAS = """
    SELECT model_versions.source
    FROM registered_model_aliases JOIN model_versions
      ON model_versions.name = registered_model_aliases.name
     AND model_versions.version = registered_model_aliases.version
    WHERE registered_model_aliases.name = ? AND registered_model_aliases.alias = ?
"""


class RegistrySource:
    """The bundle that an alias points to now.

    Args:
        model: NAME@ALIAS.
        mlruns: folder of the MLflow store.

    Raises:
        ConfigError: `model` is not of that form.
    """

    def __init__(self, model: str, mlruns: str = "mlruns") -> None:
        self._name, _, self._alias = model.partition("@")
        if not self._name or not self._alias:
            raise ConfigError(
                f"registry_model is {model!r}; use NAME@ALIAS, e.g. my-ranker@champion"
            )
        self._database = Path(mlruns).resolve() / "mlflow.db"

    def locate(self) -> Path:
        """The bundle's folder. Raises BundleError if the registry does not lead to one."""
        source = self._look_up()
        url = urlparse(source)
        if url.scheme not in ("", "file"):
            raise BundleError(
                f"{self._name}@{self._alias} is stored at {source}; only bundles in files can be "
                "served, copy it here and use --bundle"
            )
        return Path(url2pathname(url.path))

    def _look_up(self) -> str:
        uri = f"file:{quote(str(self._database))}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=5)) as database:
                row = database.execute(_SOURCE_OF_ALIAS, (self._name, self._alias)).fetchone()
        except sqlite3.Error as error:
            raise BundleError(
                f"the registry {self._database} cannot be read ({error}); check mlruns_dir"
            ) from error
        if row is None or not row[0]:
            raise BundleError(
                f"the registry {self._database} has no {self._name}@{self._alias}; "
                "promote a version first"
            )
        return str(row[0])
