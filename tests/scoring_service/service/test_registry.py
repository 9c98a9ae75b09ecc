"""The bundle behind an alias of an MLflow registry, in a folder or behind a server."""

import json
import sqlite3
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from lengthwise.errors import BundleError, ConfigError
from scoring_service.ranker.reload import ModelReloader
from scoring_service.service.registry import RegistrySource


def execute(mlruns: Path, *statements: str) -> None:
    with closing(sqlite3.connect(mlruns / "mlflow.db")) as database:
        database.executescript(";".join(statements))


@pytest.fixture
def mlruns(tmp_path, folder):
    root = tmp_path / "mlruns"
    root.mkdir()
    execute(
        root,
        "CREATE TABLE registered_model_aliases (name TEXT, alias TEXT, version INTEGER)",
        "CREATE TABLE model_versions (name TEXT, version INTEGER, source TEXT)",
        "INSERT INTO registered_model_aliases VALUES ('r', 'champion', 1)",
        f"INSERT INTO model_versions VALUES ('r', 1, '{folder.as_uri()}')",
        "INSERT INTO model_versions VALUES ('r', 2, 's3://bucket/model')",
    )
    return root


def test_the_registry_leads_to_the_bundle_of_an_alias_that_moves(
    write_bundle, mlruns, service, folder, tmp_path, outcomes
):
    source = RegistrySource("r@champion", str(mlruns))
    assert source.locate() == folder
    reloader = ModelReloader(service, source.locate, outcomes.append)
    new = write_bundle(tmp_path / "challenger", shift=1.0)
    execute(
        mlruns,
        f"INSERT INTO model_versions VALUES ('r', 3, '{new.path}')",
        "UPDATE registered_model_aliases SET version = 3",
    )
    reloader.poll()
    assert service.model.revision == new.manifest.revision


@pytest.mark.parametrize(
    "trouble",
    [
        lambda mlruns: (mlruns / "mlflow.db").unlink(),
        lambda mlruns: (mlruns / "mlflow.db").write_bytes(b"no database" * 1000),
        lambda mlruns: execute(mlruns, "UPDATE registered_model_aliases SET version = 2"),
        lambda mlruns: execute(mlruns, "UPDATE registered_model_aliases SET version = 99"),
    ],
    ids=["gone", "garbage", "remote", "unknown"],
)
def test_an_unreachable_registry_leaves_the_old_model_serving(
    mlruns, service, outcomes, caplog, trouble
):
    source = RegistrySource("r@champion", str(mlruns))
    reloader = ModelReloader(service, source.locate, outcomes.append)
    before = service.model
    trouble(mlruns)
    reloader.poll()
    assert service.model is before
    assert "serves on" in caplog.text


def test_a_registry_model_needs_an_alias():
    with pytest.raises(ConfigError, match="NAME@ALIAS"):
        RegistrySource("my-ranker")


@pytest.fixture
def mlflow_server():
    """An MLflow server's alias look-up: alias -> status and body, by its documented interface."""
    answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            url = urlparse(self.path)
            asked = parse_qs(url.query)
            assert url.path == "/api/2.0/mlflow/registered-models/alias"
            assert asked["name"] == ["r"]
            status, body = answers.get(asked["alias"][0], (400, {"error_code": "X"}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", answers
        server.shutdown()


def test_an_mlflow_server_leads_to_the_bundle_too(mlflow_server, folder):
    address, answers = mlflow_server
    answers["champion"] = 200, {"model_version": {"version": "1", "source": folder.as_uri()}}
    assert RegistrySource("r@champion", address).locate() == folder
    with pytest.raises(BundleError, match="cannot be read"):  # Down.
        RegistrySource("r@champion", "http://127.0.0.1:1").locate()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, {"error_code": "INVALID_PARAMETER_VALUE"}), "promote a version"),
        ((404, {"error_code": "RESOURCE_DOES_NOT_EXIST"}), "promote a version"),
        ((200, {"model_version": {"version": "1"}}), "promote a version"),
        ((200, {"model_version": {"source": "mlflow-artifacts:/1/x"}}), "use --bundle"),
        ((200, {}), "cannot be read"),
        ((200, []), "cannot be read"),
        ((500, {}), "cannot be read"),
    ],
)
def test_what_an_mlflow_server_cannot_tell_is_a_bundle_error(mlflow_server, answer, message):
    address, answers = mlflow_server
    answers["champion"] = answer
    with pytest.raises(BundleError, match=message):
        RegistrySource("r@champion", address).locate()
