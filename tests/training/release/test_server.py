"""A tracking server in place of a folder: every command works through $MLFLOW_TRACKING_URI."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lengthwise.bundle import ModelBundle
from training.__main__ import main
from training.data.synthetic import generate
from training.export.bundle_scores import score_prompts


@contextmanager
def serving(*words: str, cwd: Path, health: str) -> Iterator[str]:
    """Run `mlflow WORDS --port ...` on loopback until it answers; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", *words, "--host", "127.0.0.1", "--port", str(port)]
    # `mlflow models serve` calls uvicorn by its name.
    with_scripts = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (
        (cwd / "server.log").open("ab") as log,
        subprocess.Popen(command, cwd=cwd, env=with_scripts, stdout=log, stderr=log) as process,
    ):
        try:
            address, deadline_s = f"http://127.0.0.1:{port}", time.monotonic() + 900
            while True:
                try:
                    urllib.request.urlopen(address + health, timeout=5).close()
                    break
                except OSError:
                    alive = process.poll() is None and time.monotonic() < deadline_s
                    assert alive, (cwd / "server.log").read_text()[-2000:]
                    time.sleep(0.2)
            yield address
        finally:
            process.terminate()


@pytest.mark.slow
def test_runs_versions_and_bundles_live_on_a_server_of_mlflow(
    tiny_bert: Path,
    make_card: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    place = ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--workers", "1"]
    place += ["--artifacts-destination", str(tmp_path / "artifacts")]
    card = make_card(generate(300, seed=5)[0])

    def training(*words: str) -> Any:
        status = main([*words, "--json"])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return json.loads(captured.out)

    with serving("server", *place, cwd=tmp_path, health="/health") as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        settings = ["--data.dataset", str(card), "--encoder.backbone", str(tiny_bert)]
        settings += ["--optim.encoder_lr", "3e-3", "--batch_size", "16", "--threads", "1"]
        settings += ["--no-student"]
        run_id = training("fit", "demo", "--out", "out", *settings)["mlflow_run_id"]
        listed = training("list")
        (run,), (version,) = listed["runs"], listed["versions"]
        assert (run["run_id"], run["status"], run["dataset"]) == (run_id, "FINISHED", "logs")
        assert run["tau_b"] == version["tau_b"]
        bundle = ModelBundle.load("out/bundle")
        assert version["revision"] == bundle.manifest.revision
        data = ["--data", "out/test.parquet"]
        assert training("promote", "logs", "1", "--force")["champion"] is True
        both = ["--bundle", "logs/1", "--against", "logs@champion"]
        assert training("evaluate", *both, *data)["against"]["difference"] == 0
        recalibrated = ["--target-model", "other", "--out", "recalibrated"]
        training("recalibrate", "--bundle", "logs@champion", *recalibrated, *data)
        training("export", "--run", run_id, "--out", "exported")
        assert ModelBundle.load("exported").manifest == bundle.manifest
        assert not (tmp_path / "mlruns").exists()

        model = ["models", "serve", "--model-uri", "models:/logs@champion"]
        with serving(*model, "--env-manager", "local", cwd=tmp_path, health="/ping") as scorer:
            prompts = ["write an essay about tea", "name bees"]
            content = {"dataframe_records": [{"prompt": prompt} for prompt in prompts]}
            request = urllib.request.Request(
                f"{scorer}/invocations",
                json.dumps(content).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=300) as response:
                rows = json.load(response)["predictions"]
        expected = score_prompts(bundle, prompts).tolist()
        assert [row["score"] for row in rows] == pytest.approx(expected)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert main(["list"]) == 2
    assert "cannot be used" in capsys.readouterr().err
