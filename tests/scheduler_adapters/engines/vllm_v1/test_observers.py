"""The observers that an engine's environment asks for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from scheduler_adapters.engines import engine_metrics
from scheduler_adapters.engines.engine_metrics import METRICS_FOLDER, EngineMetrics, read_loads
from scheduler_adapters.engines.vllm_v1 import observers as vllm_observers
from scheduler_adapters.engines.vllm_v1.observers import EVERY_S, observers_from_environment
from scheduler_adapters.planner.ranking import Ranker
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.timeline.live_log import VARIABLE, TimelineLog
from scheduler_adapters.timeline.token_clock import TokenClock


@pytest.fixture
def scheduler() -> Any:
    parallel = SimpleNamespace(data_parallel_rank=3)
    return SimpleNamespace(
        vllm_config=SimpleNamespace(parallel_config=parallel),
        lengthwise=Ranker(FCFS(), clock=lambda: 0.0),
        _lengthwise_planner=None,
        running=[],
        waiting=[],
        kv_cache_manager=SimpleNamespace(usage=0.5),
    )


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(METRICS_FOLDER, raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(
        vllm_observers,
        "EngineMetrics",
        lambda engine: EngineMetrics(CollectorRegistry(), engine=engine),
    )


def test_an_environment_that_asks_for_nothing_gets_no_observer(scheduler: Any) -> None:
    assert observers_from_environment(scheduler, thinks=True) == []


def test_a_timeline_is_written_where_the_environment_says(
    scheduler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "t.jsonl"))
    (log,) = observers_from_environment(scheduler, thinks=False)
    assert isinstance(log, TimelineLog)
    assert log._instance == 3
    log.close()
    assert (tmp_path / "t.jsonl").exists()


def test_metrics_are_exported_now_and_then_and_when_the_engine_falls_idle(
    scheduler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path))
    monkeypatch.setattr(engine_metrics.time, "time", lambda: 0.0)
    clock, export = observers_from_environment(scheduler, thinks=True)
    assert isinstance(clock, TokenClock)
    request = SimpleNamespace(request_id="a", num_computed_tokens=7)

    def reported(now_s: float) -> int:
        export.stepped(now_s)
        (report,) = read_loads(tmp_path)
        assert report["engine"] == 3
        return int(report["kv_tokens"])

    scheduler.running = [request]
    assert reported(10.0) == 7
    request.num_computed_tokens = 9
    assert reported(10.0 + EVERY_S / 2) == 7
    assert reported(10.0 + EVERY_S) == 9
    scheduler.running = []
    assert reported(10.0 + 1.1 * EVERY_S) == 0
