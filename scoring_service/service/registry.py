"""The bundle behind an alias of an MLflow model registry, e.g. lengthwise@champion.

The database of a local registry (`mlruns/mlflow.db`) is read directly and read-only. A server is
queried over its REST interface. The service needs none of MLflow's hundred packages for that.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlparse
from urllib.request import url2pathname, urlopen

from lengthwise.addresses import shown
from lengthwise.errors import BundleError, raised_as, require
from lengthwise.mlflow_store import find_store

_TIMEOUT_S: Final = 5.0
_UNREADABLE: Final = (
    *(sqlite3.Error, OSError),
    *(ValueError, LookupError, TypeError, AttributeError),  # An answer of another form.
)
_SOURCE_OF_ALIAS: Final = """
    SELECT model_versions.source
    FROM registered_model_aliases JOIN model_versions
      ON model_versions.name = registered_model_aliases.name
     AND model_versions.version = registered_model_aliases.version
    WHERE registered_model_aliases.name = ? AND registered_model_aliases.alias = ?
"""


class RegistrySource:
    """Bundle behind NAME@ALIAS of an MLflow store: a folder, or the address of a server."""

    def __init__(self, model: str, mlruns: str = "mlruns") -> None:
        self._name, _, self._alias = model.partition("@")
        is_pair = bool(self._name and self._alias)
        require("registry_model", repr(model), is_pair, "NAME@ALIAS, e.g. my-ranker@champion")
        self._store = find_store(mlruns)
        self._registry = self._store.uri if self._store.is_server else str(self._store.database)

    def locate(self) -> Path:
        """Return the bundle's folder. Raises BundleError if the registry does not lead to one."""
        why = f"the registry {shown(self._registry)} cannot be read ({{}}); check mlruns_dir"
        with raised_as(BundleError, why, *_UNREADABLE):
            source = self._query_server() if self._store.is_server else self._read_database()
        if not source:
            raise BundleError(
                f"the registry {self._registry} has no {self._name}@{self._alias}; "
                "promote a version first"
            )
        url = urlparse(source)
        if url.scheme not in ("", "file"):
            raise BundleError(
                f"{self._name}@{self._alias} is stored at {source}; only bundles in files can be "
                "served, copy it here and use --bundle"
            )
        return Path(url2pathname(url.path))

    def _read_database(self) -> str:
        uri = f"file:{quote(self._registry)}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S)) as database:
            row = database.execute(_SOURCE_OF_ALIAS, (self._name, self._alias)).fetchone()
        return str(row[0] or "") if row else ""

    def _query_server(self) -> str:
        query = urlencode({"name": self._name, "alias": self._alias})
        url = f"{self._registry}/api/2.0/mlflow/registered-models/alias?{query}"
        try:
            with urlopen(url, timeout=_TIMEOUT_S) as response:
                return str(json.load(response)["model_version"].get("source") or "")
        except HTTPError as error:
            # MLflow's codes for an unknown model (404, RESOURCE_DOES_NOT_EXIST) and an unknown
            # alias (400, INVALID_PARAMETER_VALUE).
            if error.code in (400, 404):
                return ""
            raise
