"""The report of the Phasor experiment: spans of roles, and kinds of moves."""

from __future__ import annotations

from types import SimpleNamespace

from scheduler_adapters.papers.phasor_report import moves_of, role_spans
from scheduler_adapters.papers.phasor_runs import Sample
from scheduler_adapters.timeline.migrations import Migration


def test_spans_end_where_a_role_changes():
    roles = {0: "ddd", 1: "bpb"}
    named = {"d": "decode", "b": "both", "p": "prefill"}
    samples = [
        Sample(0.5 * i, number, named[letter], 0, num_decoding=0, num_queued=0)
        for number, letters in roles.items()
        for i, letter in enumerate(letters)
    ]
    assert role_spans(samples).to_numpy().tolist() == [
        [0, "decode", 0.0, 1.0],
        [1, "both", 0.0, 0.5],
        [1, "prefill", 0.5, 1.0],
        [1, "both", 1.0, 1.0],
    ]


def test_a_move_in_several_stages_is_a_live_migration():
    moves = [
        Migration(
            request_id="a",
            source=0,
            destination=1,
            start_s=1.0,
            end_s=2.0,
            kv_blocks=3,
            downtime_s=0.1,
            stages=stages,
        )
        for stages in (1, 3)
    ]
    kinds = moves_of(SimpleNamespace(migrations=moves))["kind"].tolist()
    assert kinds == ["hand-over after prefill", "live migration"]
