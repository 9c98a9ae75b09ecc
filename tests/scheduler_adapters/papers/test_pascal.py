"""PASCAL: changes by bin, the best and the worst of them, and the criteria on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.papers import pascal
from scheduler_adapters.papers.pascal_runs import (
    CHATS,
    FCFS,
    FOLLOWS,
    LOADS,
    PASCAL,
    RR,
    STAYS,
    PascalRun,
)

RUN = PascalRun(
    violations=0.01,
    tokens_per_s=1000.0,
    blocking_p99_s=0.1,
    reasoning_p50_s=9.0,
    e2e_p50_s=20.0,
    e2e_p99_s=90.0,
    migration_p99_s=0.1,
    blocked_fraction=0.2,
    tail_s={0: 40.0, 256: 50.0},
)


class MadeUp:
    """An experiment with given runs by system, the same for every mix and load."""

    def __init__(self, **runs: list[PascalRun]):
        self.made = {PASCAL: [RUN] * 2, FCFS: [RUN] * 2, RR: [RUN] * 2, **runs}

    def runs(self, mix: str, system: str, load: str = "high") -> list[PascalRun]:
        return self.made[system]

    def high_rate(self, mix: str) -> float:
        return 5.0

    def mean(self, name: str, mix: str, system: str, load: str = "high") -> float:
        return float(np.mean([getattr(run, name) for run in self.runs(mix, system, load)]))


def tail(**seconds: float) -> PascalRun:
    return replace(RUN, tail_s={int(name[1:]): value for name, value in seconds.items()})


def test_changes_are_by_bin_and_a_bin_that_few_seeds_have_is_left_out():
    ours = [tail(t0=20.0, t256=60.0), tail(t0=30.0), tail(t0=10.0)]
    experiment = MadeUp(**{PASCAL: ours, FCFS: [RUN] * 3})
    found = pascal.changes(experiment, CHATS[0], FCFS)
    assert found == {0: pytest.approx([-0.5, -0.25, -0.75])}
    assert pascal.extreme({0: [-0.5], 256: [0.2]}, is_best=True) == (0, -0.5)
    assert pascal.extreme({0: [-0.5], 256: [0.2]}, is_best=False) == (256, 0.2)


@pytest.mark.parametrize(("best_s", "holds"), [(21.9, True), (23.0, False)])
def test_the_best_bin_against_fcfs_has_to_gain_45_percent(best_s, holds):
    experiment = MadeUp(**{PASCAL: [tail(t0=best_s, t256=57.0)] * 2})
    assert pascal._best_row(experiment, CHATS[0], FCFS).reproduced is holds
    assert pascal._worst_row(experiment, FCFS).reproduced


def test_a_bin_that_loses_more_than_15_percent_is_told():
    experiment = MadeUp(**{PASCAL: [tail(t0=20.0, t256=58.0)] * 2})
    row = pascal._worst_row(experiment, RR)
    assert not row.reproduced
    assert "+16%" in row.ours
    assert "256 reasoning tokens" in row.ours


@pytest.mark.parametrize(("violations", "holds"), [(0.01, True), (0.011, False)])
def test_violations_may_not_exceed_those_of_a_baseline(violations, holds):
    experiment = MadeUp(**{PASCAL: [replace(RUN, violations=violations)] * 2})
    row = pascal._violations_row(experiment, CHATS[0])
    assert row.reproduced is holds
    assert all(load in row.ours for load in LOADS)


@pytest.mark.parametrize(("tokens_per_s", "holds"), [(955.0, True), (1060.0, False)])
def test_throughput_is_within_five_percent_both_ways(tokens_per_s, holds):
    experiment = MadeUp(**{PASCAL: [replace(RUN, tokens_per_s=tokens_per_s)] * 2})
    assert pascal._throughput_row(experiment).reproduced is holds


def test_the_variants_are_held_to_their_factors():
    slower = replace(RUN, blocking_p99_s=1.0, violations=0.03, e2e_p50_s=21.0)
    experiment = MadeUp(**{STAYS: [slower] * 2, FOLLOWS: [slower] * 2})
    assert pascal._no_migration_row(experiment).reproduced
    assert [row.reproduced for row in pascal._non_adaptive_rows(experiment)] == [True, True]
    near = replace(RUN, blocking_p99_s=0.9, violations=0.029, e2e_p50_s=20.9)
    experiment = MadeUp(**{STAYS: [near] * 2, FOLLOWS: [near] * 2})
    assert not pascal._no_migration_row(experiment).reproduced
    assert [row.reproduced for row in pascal._non_adaptive_rows(experiment)] == [False, False]


def test_kv_that_migrates_in_no_time_is_not_the_paper_s():
    experiment = MadeUp(**{PASCAL: [replace(RUN, migration_p99_s=0.01)] * 2})
    assert not pascal._migration_row(experiment, CHATS[0]).reproduced
    assert pascal._migration_row(MadeUp(), CHATS[0]).reproduced
