"""A tracking server in place of a folder: every command works through $MLFLOW_TRACKING_URI."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lengthwise.bundle import ModelBundle
from tests.training.drawn import generate
from training.__main__ import main
from training.export.bundle_scores import score_prompts
from training.release.tracking import Store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a server of MLflow on loopback that answers, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    command += ["--artifacts-destination", str(tmp_path / "artifacts")]
    with (
        (tmp_path / "server.log").open("ab") as log,
        subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log) as process,
    ):
        address, deadline_s = f"http://127.0.0.1:{port}", time.monotonic() + 900
        try:
            while True:
                try:
                    urllib.request.urlopen(address + "/health", timeout=5).close()
                    break
                except OSError:
                    alive = process.poll() is None and time.monotonic() < deadline_s
                    assert alive, (tmp_path / "server.log").read_text()[-2000:]
                    time.sleep(0.2)
            yield address, process
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs_versions_and_bundles_live_on_a_server_of_mlflow(
    tiny_bert: Path,
    make_card: Callable[..., Path],
    server: tuple[str, subprocess.Popen[bytes]],
    quick_export: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mlflow

    address, process = server
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    card = make_card(generate(200, seed=5)[0])

    def training(*words: str) -> Any:
        status = main([*words, "--json"])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return json.loads(captured.out)

    settings = ["--data.dataset", str(card), "--encoder.backbone", str(tiny_bert)]
    settings += ["--optim.encoder_lr", "3e-3", "--batch_size", "32", "--threads", "1"]
    settings += ["--no-student", "--split.test-fraction", ".35"]
    run_id = training("fit", "demo", "--out", "out", *settings)["mlflow_run_id"]
    store = Store(address)
    (version,), run = store.client.search_model_versions(), store.client.get_run(run_id)
    assert (run.info.status, run.data.tags["dataset"]) == ("FINISHED", "logs")
    assert run.data.tags["tau_b"] == version.tags["tau_b"]
    bundle = ModelBundle.load("out/bundle")
    assert version.tags["revision"] == bundle.manifest.revision
    data = ["--data", "out/test.parquet"]
    assert training("promote", "logs", "1", "--force")["champion"] is True
    both = ["--bundle", "logs/1", "--against", "logs@champion"]
    assert training("evaluate", *both, *data)["against"]["difference"] == 0
    recalibrated = ["--target-model", "other", "--out", "recalibrated"]
    training("recalibrate", "--bundle", "logs@champion", *recalibrated, *data)
    training("export", "--run", run_id, "--out", "exported")
    assert ModelBundle.load("exported").manifest == bundle.manifest
    assert not (tmp_path / "mlruns").exists()
    mlflow.set_tracking_uri(address)
    prompts = ["write an essay about tea", "name bees"]
    model = mlflow.pyfunc.load_model("models:/logs@champion")
    scores = model.predict(pd.DataFrame({"prompt": prompts})).score.tolist()
    assert scores == score_prompts(bundle, prompts).tolist()

    process.terminate()
    process.wait()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert main(["export", "--run", "r", "--out", "o"]) == 2
    assert "cannot be used" in capsys.readouterr().err
