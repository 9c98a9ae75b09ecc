"""Rows of a paper: their parts, and the time of their criterion."""

from __future__ import annotations

from scheduler_adapters.papers.rows import row


def test_a_row_is_of_a_metric_a_workload_and_a_system_and_says_when_its_criterion_was_settled():
    made = row("m | w, 2 | FCFS", "2x", "2.1x", True, "2x or more")
    assert (made.metric, made.workload, made.baseline) == ("m", "w, 2", "FCFS")
    assert (made.settled, made.note) == ("set beforehand", "")
    late = row("m | w | FCFS", "2x", "2.1x", True, "2x or more", pre_set=False)
    assert late.settled == "settled with figures at hand"
