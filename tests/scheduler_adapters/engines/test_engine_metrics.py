"""The exported figures follow a scheduler's counters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from scheduler_adapters.engines.engine_metrics import EngineMetrics
from scheduler_adapters.engines.hints import HintCounts
from scheduler_adapters.views import Phase


def resident(phase: Phase, tokens: int) -> Any:
    view = SimpleNamespace(phase=phase)
    return SimpleNamespace(lengthwise=SimpleNamespace(view=view), num_computed_tokens=tokens)


@pytest.fixture
def scheduler() -> Any:
    return SimpleNamespace(
        lengthwise=SimpleNamespace(hint_counts=HintCounts(scored=5, unscored=2), num_expired=3),
        _lengthwise_planner=SimpleNamespace(num_deferred=7),
        running=[resident(Phase.REASONING, 10), resident(Phase.REASONING, 20)],
    )


def test_counters_advance_to_what_was_counted_and_no_further(scheduler: Any) -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    metrics.export(scheduler)
    metrics.export(scheduler)
    scheduler.lengthwise.hint_counts.scored += 1
    metrics.export(scheduler)
    value = registry.get_sample_value
    assert value("lengthwise_engine_requests_total", {"hint": "scored"}) == 6
    assert value("lengthwise_engine_requests_total", {"hint": "unscored"}) == 2
    assert value("lengthwise_expired_ranks_total") == 3
    assert value("lengthwise_deferrals_total") == 7


def test_kv_memory_is_shown_by_phase_and_falls_to_zero(scheduler: Any) -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    metrics.export(scheduler)
    reasoning = {"phase": "reasoning"}
    assert registry.get_sample_value("lengthwise_resident_requests", reasoning) == 2
    assert registry.get_sample_value("lengthwise_resident_tokens", reasoning) == 30
    scheduler.running.clear()
    metrics.export(scheduler)
    assert registry.get_sample_value("lengthwise_resident_tokens", reasoning) == 0


def test_without_a_planner_residents_have_no_phase(scheduler: Any) -> None:
    registry = CollectorRegistry()
    scheduler._lengthwise_planner = None
    EngineMetrics(registry).export(scheduler)
    value = registry.get_sample_value
    assert value("lengthwise_resident_requests", {"phase": "running"}) == 2
    assert value("lengthwise_deferrals_total") == 0
