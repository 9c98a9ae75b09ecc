"""What a command found is a run in the local MLflow store, unless nobody wants it."""

import sqlite3

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.__main__ import main
from scheduler_adapters.reporting import tracking

SMALL = ("simulate", "--num_requests=20", "--policy=fcfs")


@pytest.mark.slow
def test_a_run_holds_settings_figures_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main([*SMALL, "--out=requests.parquet"]) == 0
    store = sqlite3.connect(tmp_path / "mlruns" / "mlflow.db")
    (name, status) = store.execute("select name, status from runs").fetchone()
    assert (name, status) == ("simulate fcfs", "FINISHED")
    assert ("policy", "fcfs") in store.execute("select key, value from params").fetchall()
    metrics = dict(store.execute("select key, value from metrics").fetchall())
    assert metrics["num_finished"] == 20
    assert metrics["ttft_s.p99"] > 0
    assert len(list((tmp_path / "mlruns" / "artifacts").rglob("requests.parquet"))) == 1


@pytest.mark.parametrize("arguments", [["--out=requests.parquet", "--mlruns-dir=null"], []])
def test_nothing_is_logged_without_a_store_or_without_files(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, *arguments]) == 0
    assert not (tmp_path / "mlruns").exists()
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)  # without mlflow
    tracking.log_run(tmp_path / "mlruns", "name", params={}, metrics={}, files=[])
    assert not (tmp_path / "mlruns").exists()


def test_a_store_that_cannot_be_written_is_one_clear_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ConfigError, match="choose another --mlruns-dir"):
        tracking.log_run(blocked, "name", params={}, metrics={}, files=[])
