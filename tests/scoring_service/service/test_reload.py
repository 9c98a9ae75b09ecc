"""A new bundle takes over, a bad one does not, and no call notices either."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from scoring_service.bundle import FP32, TOKENIZER, ModelBundle
from scoring_service.client import Score, ScoringClient
from scoring_service.errors import BundleError, ConfigError
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from scoring_service.service.registry import RegistrySource
from scoring_service.service.reload import LOADED, REFUSED, FolderSource, ModelReloader
from scoring_service.service.scoring import ScoringService


@pytest.fixture
def folder(write_bundle, tmp_path):
    return write_bundle(tmp_path / "bundle").path


@pytest.fixture
def service(folder):
    model = RankerModel.load(ModelBundle.load(folder))
    return ScoringService(model, ServerConfig(address="127.0.0.1:0"))


@pytest.fixture
def outcomes():
    return []


@pytest.fixture
def reloader(service, folder, outcomes):
    return ModelReloader(service, FolderSource(str(folder)), poll_s=60, count=outcomes.append)


def rewrite(folder: Path, change=lambda work: None, **manifest) -> None:
    """Push an altered copy of the bundle into its own folder."""
    bundle = ModelBundle.load(folder)

    def fill(work: Path) -> None:
        for name in bundle.manifest.files:
            shutil.copy(bundle.path / name, work / name)
        change(work)

    ModelBundle.write(folder, replace(bundle.manifest, **manifest), fill)


def test_a_new_version_takes_over(write_bundle, service, reloader, folder, outcomes):
    before = service.model
    write_bundle(folder, shift=1.0)
    reloader.poll()
    assert service.model.score([[5]])[0] == pytest.approx(before.score([[5]])[0] + 1)
    assert service.model.revision != before.revision
    assert outcomes == [LOADED]


def test_the_same_files_again_change_nothing(write_bundle, service, reloader, folder, outcomes):
    before = service.model
    write_bundle(folder)
    reloader.poll()
    reloader.poll()
    assert service.model is before
    assert outcomes == []


def damage_model(folder):
    (folder / FP32).write_bytes(b"damaged")


def drop_tokenizer(folder):
    (folder / TOKENIZER).unlink()


def other_ranker(folder):
    rewrite(folder, lambda work: (work / "note").write_text("x"), name="another")


def other_label(folder):
    rewrite(folder, lambda work: (work / "note").write_text("x"), label="reasoning_tokens")


def off_golden(folder):
    rewrite(
        folder,
        lambda work: (work / "note").write_text("x"),
        golden={"yes": 5.0, "no": 6.0, "essay": 7.0},
    )


@pytest.mark.parametrize(
    "push", [damage_model, drop_tokenizer, other_ranker, other_label, off_golden]
)
def test_a_bad_bundle_is_refused_and_the_old_one_serves_on(
    service, reloader, folder, outcomes, caplog, push
):
    before = service.model
    push(folder)
    reloader.poll()
    reloader.poll()
    assert service.model is before
    assert outcomes == [REFUSED]  # once: the same files would fail again
    assert "serves on" in caplog.text


def test_a_good_bundle_after_a_bad_one_takes_over(
    write_bundle, service, reloader, folder, outcomes
):
    damage_model(folder)
    reloader.poll()
    write_bundle(folder, shift=2.0)
    reloader.poll()
    assert outcomes == [REFUSED, LOADED]


def test_a_bundle_that_is_copied_slowly_takes_over_when_it_is_whole(
    write_bundle, service, reloader, folder, tmp_path, outcomes
):
    new = write_bundle(tmp_path / "new", shift=1.0)
    names = sorted(path.name for path in new.path.iterdir())
    for name in names:
        shutil.copy(new.path / name, folder / name)
        reloader.poll()
    assert service.model.revision == new.manifest.revision
    assert outcomes[-1] == LOADED


def test_a_folder_that_is_gone_is_waited_for(
    write_bundle, service, reloader, folder, outcomes, caplog
):
    shutil.rmtree(folder)
    reloader.poll()
    reloader.poll()
    assert caplog.text.count("no bundle to reload") == 1
    write_bundle(folder, shift=1.0)
    reloader.poll()
    assert outcomes == [LOADED]


def test_golden_prompts_that_are_met_are_accepted(folder):
    model = RankerModel.load(ModelBundle.load(folder))
    golden = {p: model.score([model.tokenizer.tokenize([p])[0].ids])[0] for p in ("yes", "essay")}
    rewrite(folder, golden=golden)
    RankerModel.load(ModelBundle.load(folder))
    rewrite(folder, golden={**golden, "poem": 3.0})
    with pytest.raises(BundleError, match="golden"):
        RankerModel.load(ModelBundle.load(folder))


def test_no_call_fails_while_versions_change_under_load(write_bundle, folder):
    model = RankerModel.load(ModelBundle.load(folder))
    config = ServerConfig(address="127.0.0.1:0", reload_poll_s=0.02, cache_entries=0)
    server = ScoringServer(model, config, FolderSource(str(folder)))
    server.start()
    stop = threading.Event()

    seen: set[tuple[str, float]] = set()

    def ask(_: int) -> None:
        with ScoringClient(server.target, timeout_s=60) as client:
            while not stop.is_set():
                (score,) = client.score_batch(["essay"])
                assert isinstance(score, Score)
                seen.add((score.revision, round(score.value, 3)))

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask, n) for n in range(4)]
        for number, shift in enumerate((1.0, 2.0, 3.0, None), 1):
            deadline_s = time.monotonic() + 60
            while len(seen) < number:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            if shift is not None:
                write_bundle(folder, shift=shift)
        stop.set()
        for future in futures:
            future.result(60)
    server.stop()
    revisions = [revision for revision, _ in seen]
    assert len(seen) == len(set(revisions)) == 4, "each revision has one score"


@pytest.fixture
def mlruns(tmp_path, folder):
    root = tmp_path / "mlruns"
    root.mkdir()
    with sqlite3.connect(root / "mlflow.db") as database:
        database.executescript(
            """
            CREATE TABLE registered_model_aliases (name TEXT, alias TEXT, version INTEGER);
            CREATE TABLE model_versions (name TEXT, version INTEGER, source TEXT);
            """
        )
        database.execute("INSERT INTO registered_model_aliases VALUES ('r', 'champion', 1)")
        database.execute("INSERT INTO model_versions VALUES ('r', 1, ?)", (folder.as_uri(),))
        database.execute("INSERT INTO model_versions VALUES ('r', 2, 's3://bucket/model')")
    database.close()
    return root


def point_alias_to(mlruns: Path, version: int) -> None:
    with sqlite3.connect(mlruns / "mlflow.db") as database:
        database.execute("UPDATE registered_model_aliases SET version = ?", (version,))
    database.close()


def test_the_registry_leads_to_the_bundle_behind_the_alias(mlruns, folder):
    assert RegistrySource("r@champion", str(mlruns)).locate() == folder


def test_a_moved_alias_is_followed(write_bundle, mlruns, service, tmp_path, outcomes):
    new = write_bundle(tmp_path / "challenger", shift=1.0)
    with sqlite3.connect(mlruns / "mlflow.db") as database:
        database.execute("INSERT INTO model_versions VALUES ('r', 3, ?)", (str(new.path),))
    database.close()
    source = RegistrySource("r@champion", str(mlruns))
    reloader = ModelReloader(service, source, poll_s=60, count=outcomes.append)
    point_alias_to(mlruns, 3)
    reloader.poll()
    assert service.model.revision == new.manifest.revision


@pytest.mark.parametrize("trouble", ["gone", "garbage", "remote", "unknown"])
def test_an_unreachable_registry_leaves_the_old_model_serving(
    mlruns, service, outcomes, caplog, trouble
):
    source = RegistrySource("r@champion", str(mlruns))
    reloader = ModelReloader(service, source, poll_s=60, count=outcomes.append)
    before = service.model
    if trouble == "gone":
        (mlruns / "mlflow.db").unlink()
    elif trouble == "garbage":
        (mlruns / "mlflow.db").write_bytes(b"no database" * 1000)
    else:
        point_alias_to(mlruns, 2 if trouble == "remote" else 99)
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

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_mlflow_server_leads_to_the_bundle_too(mlflow_server, folder):
    address, answers = mlflow_server
    answers["champion"] = 200, {"model_version": {"version": "1", "source": folder.as_uri()}}
    assert RegistrySource("r@champion", address).locate() == folder


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


def test_an_mlflow_server_that_is_down_is_a_bundle_error():
    with pytest.raises(BundleError, match="cannot be read"):
        RegistrySource("r@champion", "http://127.0.0.1:1").locate()
