"""PASCAL: the high rate, one phase alone, changes by bin, and the criteria on them."""

from typing import Any

import numpy as np
import pytest

from benchmarks.papers import pascal
from benchmarks.papers.pascal import (
    ANSWERING,
    CHATS,
    FCFS,
    LOADS,
    PASCAL,
    REASONING,
    RR,
    STAYS,
    OnePhase,
    PascalExperiment,
    blocked_fraction,
)
from benchmarks.papers.rows import KINDS
from benchmarks.papers.runs import FIRST_SEED, ReproduceConfig
from scheduler_adapters.simulator.observers import LoadRecorder
from scheduler_adapters.views import LoadView

FOLLOWS, COUNTS = "pascal, NonAdaptive", "pascal, r + a"
RUN = {"qoe_violations": 0.01, "blocking_s.p99": 0.1, "reasoning_p50_s": 9.0, "e2e_s.p50": 20.0}
RUN |= {"e2e_s.p99": 90.0, "migration_p99_s": 0.1, "blocked": 0.2, "tail_s": {0: 40.0, 256: 50.0}}


def experiment(seeds: int = 1) -> PascalExperiment:
    return PascalExperiment(ReproduceConfig(paper="pascal", scale=0.02, seeds=seeds))


def made_up(seeds: int = 2, **runs: list[dict[str, Any]]) -> PascalExperiment:
    """An experiment with given runs by system, the same for every mix and load."""
    made = experiment(seeds)
    made.high_rate = lambda mix: 5.0
    made.run = lambda system, *, mix, rate, seed: (runs.get(system) or [RUN] * seeds)[
        seed - FIRST_SEED
    ]
    return made


def tail(**seconds: float) -> dict[str, Any]:
    return RUN | {"tail_s": {int(name[1:]): value for name, value in seconds.items()}}


def test_changes_are_by_bin_and_bins_with_few_seeds_are_left_out():
    ours = [tail(t0=20.0, t256=60.0), tail(t0=30.0), tail(t0=10.0)]
    made = made_up(3, **{PASCAL: ours})
    for pick in ("min", "max"):
        found = made.best_bin(CHATS[0], FCFS, pick)
        assert (found["value"].average, found["tokens"]) == (pytest.approx(-0.5), 0)
        assert found["words"] == "-50% [-112%, +12%] (-20.0 s) from 0 reasoning tokens"


@pytest.mark.parametrize(
    ("best_s", "other_s", "gains", "loses"),
    [(27.7, 53.0, True, False), (27.9, 53.0, False, False), (20.0, 53.1, True, True)],
)
def test_the_best_bin_needs_half_the_gain_and_the_worst_may_lose(
    best_s, other_s, gains, loses, rows_of
):
    made = made_up(**{PASCAL: [tail(t0=best_s, t256=other_s)] * 2})
    worst = rows_of(made, "extreme")[0]
    best = rows_of(made, "best_bin")[0]
    assert (best.verdict != "no", worst.verdict != "no") == (gains, not loses)
    assert "from 256 reasoning tokens" in worst.ours


@pytest.mark.parametrize(
    ("measure", "changes", "holds"),
    [
        ("violations", {"qoe_violations": 0.01}, True),
        ("violations", {"qoe_violations": 0.011}, False),
        ("level", {"migration_p99_s": 0.12}, True),
        ("level", {"migration_p99_s": 0.1}, False),
    ],
)
def test_a_criterion_ends_where_the_table_says(measure, changes, holds, rows_of):
    row, *_ = rows_of(made_up(**{PASCAL: [RUN | changes] * 2}), measure)
    assert (row.verdict != "no") is holds
    if "qoe_violations" in changes:
        assert all(load in row.ours for load in LOADS)


@pytest.mark.parametrize(
    ("slower", "holds"), [((1.0, 0.03, 22.0), True), ((0.9, 0.029, 21.9), False)]
)
def test_the_variants_are_held_to_their_factors(slower, holds, rows_of):
    names = ("blocking_s.p99", "qoe_violations", "e2e_s.p50")
    runs = [RUN | dict(zip(names, slower, strict=True))] * 2
    rows = rows_of(made_up(**{STAYS: runs, FOLLOWS: runs, COUNTS: runs}), "pair")
    found = {kind: [row.verdict != "no" for row in rows if row.kind == kind] for kind in KINDS}
    assert found == {"paper": [holds] * 4, "own": [True] * 2, "fitted": []}


def recorder(steps: list[tuple[float, float, int]]) -> LoadRecorder:
    """Steps as (end, duration, waiting requests)."""
    made = LoadRecorder()
    for end_s, duration_s, num_waiting in steps:
        made.ran(LoadView(now_s=end_s, num_waiting=num_waiting), duration_s, 1)
    return made


def test_an_instance_is_blocked_while_a_request_waits_for_memory():
    blocked = recorder([(1.0, 1.0, 0), (2.0, 1.0, 2), (4.0, 2.0, 1), (9.0, 5.0, 1)])
    free = recorder([(5.0, 5.0, 0)])
    assert blocked_fraction([blocked, free], 5.0) == pytest.approx((1 + 2 + 1) / 10)


def test_at_the_high_rate_fcfs_is_blocked_a_fifth_of_the_time():
    trial = experiment()
    systems = set()

    def run(system: str, *, mix: str, rate: float, seed: int) -> dict[str, float]:
        systems.add((mix, system))
        return {"blocked": 0.2 if rate / trial.fluid_rate(mix) < 0.9 else 0.3}

    trial.run = run
    high = trial.high_rate("arena-hard")
    assert high == pytest.approx(0.9 * trial.fluid_rate("arena-hard"), rel=0.04)
    assert systems == {("arena-hard", FCFS)}


def test_at_the_papers_load_the_unmigrated_are_blocked_as_long():
    trial = experiment()
    trial.high_rate = lambda mix: 10.0
    trial.run = lambda system, *, mix, rate, seed: {"blocking_s.p99": 27.4 + rate - 12.0}
    assert trial.blocking_rate(CHATS[0], 27.4) == pytest.approx(12.0, rel=0.01)
    assert trial.level("blocking_s.p99", STAYS, mix=CHATS[0], blocked_s=27.4)["value"][0] <= 27.4
    assert trial.words(CHATS[0], blocked_s=27.4)["at"] == "alpaca-eval, 12.0 req/s"


def test_a_run_has_the_figures_of_its_system():
    trial = experiment()
    trial.high_rate = lambda mix: 20.0
    fcfs, pascal_run = (
        trial.run(name, mix="alpaca-eval", rate=12.0, seed=FIRST_SEED) for name in (FCFS, PASCAL)
    )
    assert fcfs["blocked"] == 0.0
    assert np.isnan(fcfs["migration_p99_s"])
    assert np.isnan(pascal_run["blocked"])
    assert pascal_run["migration_p99_s"] > 0
    assert fcfs["tail_s"].keys() == pascal_run["tail_s"].keys()
    low = trial.mean("qoe_violations", FCFS, mix="alpaca-eval", load="low")
    assert low == fcfs["qoe_violations"]


def test_half_the_memory_slows_short_with_fcfs_and_long_with_rr(monkeypatch):
    monkeypatch.setattr(pascal, "_PHASE_REQUESTS", 100)
    monkeypatch.setattr(pascal, "PHASE_LENGTHS", (128, 512, 1024, 2048))
    phase = OnePhase(ReproduceConfig(paper="pascal", seeds=1), experiment().instance)
    fcfs, rr = (phase.slowdowns(policy) for policy in (FCFS, RR))
    assert fcfs[128][0] > fcfs[2048][0] >= 1.0
    assert rr[2048][0] > rr[128][0]
    assert phase.attainment("")[0] == 1.0
    assert phase.attainment(FCFS)[0] < phase.attainment(RR)[0]
    for kind in (REASONING, ANSWERING):
        assert not phase.run(kind, rate=4.0, seed=FIRST_SEED)[RR].rejected.any()
