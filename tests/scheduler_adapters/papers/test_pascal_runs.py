"""Runs of the PASCAL figures: the load that counts as high, and one phase on one instance."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_adapters.commands.reproduce import ReproduceConfig
from scheduler_adapters.papers import pascal_runs
from scheduler_adapters.papers.pascal_runs import (
    ANSWERING,
    FCFS,
    PASCAL,
    REASONING,
    RR,
    OneInstance,
    PascalExperiment,
    PascalRun,
    blocked_fraction,
)
from scheduler_adapters.simulator.observers import LoadRecorder
from scheduler_adapters.views import LoadView


def experiment() -> PascalExperiment:
    return PascalExperiment(ReproduceConfig(paper="pascal", scale=0.02, seeds=1))


def recorder(steps: list[tuple[float, float, int]]) -> LoadRecorder:
    """Steps as (end, duration, requests that wait)."""
    made = LoadRecorder()
    for end_s, duration_s, num_waiting in steps:
        made.ran(LoadView(now_s=end_s, num_waiting=num_waiting), duration_s, 1)
    return made


def test_an_instance_is_blocked_while_a_request_waits_for_memory():
    blocked = recorder([(1.0, 1.0, 0), (2.0, 1.0, 2), (4.0, 2.0, 1), (9.0, 5.0, 1)])
    free = recorder([(5.0, 5.0, 0)])
    assert blocked_fraction([blocked, free], 5.0) == pytest.approx((1 + 2 + 1) / 10)


def test_the_high_rate_is_that_at_which_fcfs_has_been_blocked_a_fifth_of_the_time():
    trial = experiment()
    asked = []

    def measure(mix: str, system: str, rate_per_s: float, seed: int) -> PascalRun:
        asked.append((mix, system))
        figures = dict.fromkeys(PascalRun.__dataclass_fields__, 0.0)
        share = rate_per_s / trial.fluid_rate(mix)
        return PascalRun(**{**figures, "blocked_fraction": 0.2 if share < 0.9 else 0.3})

    trial.measure = measure
    assert trial.high_rate("arena-hard") == pytest.approx(
        0.9 * trial.fluid_rate("arena-hard"), rel=0.04
    )
    assert set(asked) == {("arena-hard", FCFS)}


def test_a_run_has_the_figures_of_its_system():
    trial = experiment()
    trial.high_rate = lambda mix: 20.0
    (fcfs,), (pascal,) = (trial.runs("alpaca-eval", name, "low") for name in (FCFS, PASCAL))
    assert fcfs.blocked_fraction == 0.0
    assert np.isnan(fcfs.migration_p99_s)
    assert np.isnan(pascal.blocked_fraction)
    assert pascal.migration_p99_s > 0
    assert fcfs.tail_s.keys() == pascal.tail_s.keys()
    assert trial.mean("violations", "alpaca-eval", FCFS, "low") == fcfs.violations


def test_half_of_the_memory_slows_short_reasoning_under_fcfs_and_long_under_round_robin(
    monkeypatch,
):
    monkeypatch.setattr(pascal_runs, "_PHASE_REQUESTS", 100)
    monkeypatch.setattr(pascal_runs, "PHASE_LENGTHS", (128, 512, 1024, 2048))
    phase = OneInstance(experiment())
    phase.instance = pascal_runs.replace(phase.instance, max_num_seqs=100)
    fcfs, rr = (phase.slowdowns(policy) for policy in (FCFS, RR))
    assert fcfs[128][0] > fcfs[2048][0] >= 1.0
    assert rr[2048][0] > rr[128][0]
    assert phase.attainment("")[0] == 1.0
    assert phase.attainment(FCFS)[0] < phase.attainment(RR)[0]
    for kind in (REASONING, ANSWERING):
        assert not phase.timelines(kind, 4.0, pascal_runs.FIRST_SEED)[RR].rejected.any()
