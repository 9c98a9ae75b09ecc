"""Settings that commands share: named policies, captions, logged runs."""

import sqlite3
from types import SimpleNamespace

import pytest

from lengthwise.bundle import BANNER
from lengthwise.errors import ConfigError
from scheduler_adapters.__main__ import main
from scheduler_adapters.commands import experiment_settings
from scheduler_adapters.commands.experiment_settings import (
    Setup,
    load_named,
    policy_of,
)
from scheduler_adapters.workload import workload
from scheduler_adapters.workload.requests import make_requests

PATIENT = {"patient": {"policy": "pars", "starve_after_s": 600}, "rad": {"max_started": 7}}
BURST = make_requests(prompt_tokens=[1, 1], output_tokens=[1, 1])


def test_a_made_up_name_makes_a_new_policy_of_its_settings():
    assert policy_of("patient", PATIENT) == "pars"
    assert policy_of("fcfs", PATIENT) == "fcfs"
    first, second = load_named("rad", PATIENT), load_named("rad", PATIENT)
    assert first is not second
    assert load_named("patient", PATIENT).name == load_named("pars-paper", {}).name


def test_a_caption_names_all_that_was_set():
    classes = {"paying": {"share": 0.25, "tbt_s": 0.1}, "free": {"share": 0.75}}
    setup = Setup(
        kv_blocks=4000, host_gb_per_s=50.0, classes=classes, scores="synthetic", seed=3, tau_b=0.6
    )
    assert setup.conditions("all at 0 s", 1200) == (
        "llama-3-8b@a100-80g, plain engine, 256 seats, 2048 tokens a step, 4,000 KV blocks, host "
        "link of 50 GB/s; log-normal mix, 1,200 requests, 25% paying (TBT <= 0.1 s), 75% free, "
        "all at 0 s; scores: synthetic (tau_b 0.6); seed 3"
    )


def test_arrivals_are_named_by_rate_or_trace():
    assert Setup().arrivals_text(None, BURST) == "all at 0 s"
    later = make_requests(prompt_tokens=[1], output_tokens=[1], arrival_s=[2.0])
    assert Setup().arrivals_text(None, later) == "at the trace's times"
    assert Setup().arrivals_text(4.0, BURST) == "Poisson arrivals at 4/s"
    bursts = Setup(cv=2.5, rate_per_s=4.0)
    assert bursts.arrivals_text(4.0, BURST) == "Gamma arrivals (CV 2.5) at 4/s"


def test_scores_of_a_ranker_of_invented_data_carry_its_banner(tmp_path, monkeypatch):
    manifest = SimpleNamespace(banner=BANNER)
    monkeypatch.setattr(workload, "read_manifest", lambda folder: manifest)
    setup = Setup(trace=(str(tmp_path / "t.csv"),), scores="bundle:run/bundle")
    assert setup.conditions("all at 0 s", 5).startswith(f"{BANNER}. llama")
    assert Setup().banner is None


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
    monkeypatch.setattr(experiment_settings, "find_spec", lambda name: None)  # without mlflow
    Setup().log("name", {}, [tmp_path])
    assert not (tmp_path / "mlruns").exists()


def test_a_store_that_cannot_be_written_is_one_clear_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ConfigError, match="choose another --mlruns-dir"):
        Setup(mlruns_dir=str(blocked)).log("name", {}, [blocked])
