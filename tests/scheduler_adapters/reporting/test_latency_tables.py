"""Tables of runs: cumulative shares, rows of runs, intervals."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.reporting import latency_tables
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.timeline import timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests


def test_the_share_also_counts_values_that_never_happened():
    table = latency_tables.ecdf_table({"": {"fcfs": [2.0, np.nan, 1.0, 4.0]}})
    assert table["value"].tolist() == [1, 2, 4]
    assert table["share"].tolist() == [0.25, 0.5, 0.75]
    weighted = latency_tables.ecdf_table({"": {"p": ([3.0, 1.0], [1, 3])}})
    assert weighted["share"].tolist() == [0.75, 1.0]


def test_many_values_are_thinned_and_the_curve_stays():
    table = latency_tables.ecdf_table({"": {"p": np.random.default_rng(0).random(50_000)}})
    assert len(table) <= 401
    assert table["share"].iloc[-1] == pytest.approx(1.0)
    np.testing.assert_allclose(table["value"], table["share"], atol=0.02)


def test_the_interval_is_students():
    assert latency_tables.interval([2.0]) == (2.0, 2.0)
    low, high = latency_tables.interval([1.0, 2.0, 3.0])
    # sd 1, n 3: half width 4.30 / sqrt(3)
    assert (low, high) == pytest.approx((2 - 2.483, 2 + 2.483), abs=0.01)
    table = latency_tables.capacity_table({"pars": [1.0, 2.0, 3.0], "fcfs": [1.0]})
    assert table["mean"].tolist() == [2.0, 1.0]
    assert table[["low", "high"]].to_numpy().tolist() == [[low, high], [1, 1]]


def test_a_mean_is_written_with_its_interval():
    assert latency_tables.with_interval([-0.2, -0.2], "{:+.1%}") == "-20.0% [-20.0%, -20.0%]"
    assert latency_tables.with_interval([1.0, 2.0], "{:.1f}").startswith("1.5 [")
    assert latency_tables.with_interval([2.0], "{:.2f} s", "{:.2f}") == "2.00 s [2.00, 2.00]"


def outcome_of(rate_per_s: float | None = None) -> latency_tables.Outcome:
    """Two users: one gets tokens at 1 and 3 s, the other at 2 s."""
    requests = make_requests(
        prompt_tokens=[1, 1], output_tokens=[2, 1], user_class=["paying", "free"]
    )
    timeline = timeline_from_token_times(requests, [[1.0, 3.0], [2.0]])
    return latency_tables.Outcome(
        policy="my/pars",
        rate_per_s=rate_per_s,
        timeline=timeline,
        summary=summarize(timeline),
    )


def test_a_row_has_gaps_by_class_and_a_name_that_files_can_have():
    outcome = outcome_of(2.5)
    row = outcome.row()
    assert outcome.name == "my_pars_q2.5"
    assert (row["num_finished"], row["e2e_mean_s"], row["rate_per_s"]) == (2, 2.5, 2.5)
    assert row["tbt_p99_s_paying"] == 2.0
    assert np.isnan(row["tbt_p99_s_free"])


def test_latencies_and_rates_are_those_of_the_runs():
    latencies = latency_tables.latency_table([outcome_of()]).groupby("panel")["value"].apply(list)
    assert latencies.to_dict() == {"TTFT": [1, 2], "TBT": [2], "E2E": [2, 3]}
    rates = latency_tables.rate_table([outcome_of(1.0), outcome_of(2.0)])
    assert rates["metric"].tolist() == ["TTFT"] * 2 + ["TBT"] * 2 + ["E2E / output tokens"] * 2
    assert rates["rate_per_s"].tolist() == [1.0, 2.0] * 3


def test_a_run_of_a_cluster_is_named_with_its_placement():
    one, two = outcome_of(), replace(outcome_of(), placement="least-kv")
    assert two.system == "my/pars with least-kv"
    assert (two.name, two.row()["placement"]) == ("my_pars_least-kv", "least-kv")
    assert "placement" not in one.row()


def served(policy: str, last_token_s: Sequence[float]) -> latency_tables.Outcome:
    """Requests of one token that all arrive at 0 s, with the time of each token."""
    requests = make_requests(prompt_tokens=1, output_tokens=[1] * len(last_token_s))
    timeline = timeline_from_token_times(
        requests, [[at_s] for at_s in last_token_s], scheduled_s=0.0
    )
    return latency_tables.Outcome(policy, None, timeline, summarize(timeline))


def test_the_effect_is_told_against_fcfs_with_its_price():
    outcomes = [served("pars", [1.0, 2.0, 9.0]), served("fcfs", [6.0, 7.0, 8.0])]
    said = latency_tables.effect_text(outcomes)
    assert said.startswith("pars against fcfs: mean E2E -43%, p99 +")
    assert latency_tables.effect_text(outcomes[:1]) == ""
    assert "hardly a queue" in latency_tables.effect_text(
        [outcomes[1], served("slai", [6.0, 7.0, 8.0])]
    )
    by_placement = [
        replace(outcome, policy="pars", placement=name)
        for outcome, name in zip(outcomes[::-1], ("random", "least-kv"), strict=True)
    ]
    said = latency_tables.effect_text(by_placement)
    assert said.startswith("pars with least-kv against pars with random: mean E2E -43%")
