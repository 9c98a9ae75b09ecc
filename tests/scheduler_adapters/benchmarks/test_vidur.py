"""Vidur's speed: scaled, and from a checkout, for which a small one stands here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.benchmarks import vidur
from scheduler_adapters.benchmarks.vidur import RECORDED_LOOP_S, run_vidur, scaled_per_cpu_s
from scheduler_adapters.workload.requests import make_requests

REQUESTS = make_requests(prompt_tokens=[5, 6], output_tokens=[7, 8])


def test_the_recorded_speed_is_scaled_by_the_time_of_a_loop(monkeypatch):
    monkeypatch.setattr(vidur, "calibration_loop", lambda: 2 * RECORDED_LOOP_S)
    assert scaled_per_cpu_s() == {"sarathi_r1": 544, "sarathi_r8": 536}


def test_the_loop_takes_time():
    assert vidur.calibration_loop() > 0


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(vidur, "_UNUSED", ())
    (tmp_path / "vidur").mkdir()
    (tmp_path / "vidur" / "simulator.py").write_text("import no_such_package\n")
    with pytest.raises(ConfigError, match="no_such_package"):
        vidur._import_vidur(tmp_path)
    sys.modules.pop("vidur", None)


def test_the_golden_tables_are_looked_up_where_vidur_asks(tmp_path, monkeypatch):
    module = ModuleType("predictor")
    module.SklearnExecutionTimePredictor = SimpleNamespace()
    monkeypatch.setattr(vidur, "import_module", lambda name: module)
    path = tmp_path / "tables.npz"
    grid = np.arange(6.0).reshape(2, 3)
    np.savez(
        path,
        linear_ms=np.arange(4.0),
        kv_save_ms=np.arange(3.0),
        decode_attention_ms=grid,
        prefill_attention_ms=grid,
    )
    vidur._use_tables(path)
    tables = module.SklearnExecutionTimePredictor._predict_from_models(None)
    assert tables["attn_pre_proj"][3,] == 3.0
    assert tables["mlp_act"][3,] == 0.0
    assert tables["attn_kv_cache_save"][2,] == 2.0
    assert tables["attn_decode"][1, 128] == 5.0  # one decode, twice 64 tokens of context
    assert tables["attn_prefill"][64, 4] == 5.0  # 64 tokens before a chunk of two


def test_the_fastest_run_counts(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(vidur, "_import_vidur", ran.append)
    monkeypatch.setattr(vidur, "_use_tables", ran.append)

    def simulator(trace, replicas, folder):
        assert len(trace.read_text().splitlines()) == 3
        return SimpleNamespace(run=lambda: ran.append(replicas))

    times_s = iter([0.0, 4.0, 10.0, 11.0])
    monkeypatch.setattr(vidur, "_simulator", simulator)
    monkeypatch.setattr(vidur.time, "process_time", lambda: next(times_s))
    monkeypatch.setattr(vidur.logging, "disable", lambda: None)
    monkeypatch.setattr(vidur.gc, "freeze", lambda: None)
    figures = run_vidur(tmp_path, tmp_path / "tables.npz", REQUESTS, replicas=8, repeats=2)
    assert figures == {"per_cpu_s": 2}
    assert ran == [tmp_path, tmp_path / "tables.npz", 8, 8]
