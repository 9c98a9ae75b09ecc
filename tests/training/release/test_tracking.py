"""A store: runs, their metrics of the machine, versions and the champion."""

from __future__ import annotations

import time
from pathlib import Path

import pytest


def test_a_run_notes_what_the_machine_did(mlruns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from training.release.tracking import Tracker

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    tracker = Tracker(mlruns, run_name="watched")
    deadline_s = time.monotonic() + 120
    while not (metrics := tracker.client.get_run(tracker.run_id).data.metrics):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    tracker.finish()
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100
