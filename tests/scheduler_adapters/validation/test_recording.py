"""The recorder of an engine, told by hand."""

from __future__ import annotations

from scheduler_adapters.timeline.observer import EngineObserver, measuring
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.validation.decision_replay import Admitted, Queued
from scheduler_adapters.validation.recording import Recorder, StepRecorder
from scheduler_adapters.views import LoadView, RequestView

STEP = StepRecord(1, 5, 0, 0, 0.0, 0.01)


def test_decisions_do_not_follow_what_happens_to_the_request_later() -> None:
    view, load, recorder = RequestView("a", 7, 0.0, 4, score=1.0), LoadView(now_s=1.0), Recorder()
    recorder.attached(load)
    recorder.queued(view, 1.0)
    view.score, load.now_s = 9.0, 5.0
    recorder.admitted(view, 5.0)
    view.preemptions, load.now_s = 1, 6.0
    recorder.evicted(view, 6.0)
    load.now_s = 8.0
    first, admitted, again = recorder.decisions
    assert isinstance(first, Queued)
    assert (first.view.score, first.load.now_s) == (1.0, 1.0)
    assert admitted == Admitted((7,), LoadView(now_s=5.0))
    assert isinstance(again, Queued)
    assert (again.view.preemptions, again.load.now_s) == (1, 6.0)


def test_steps_are_kept_in_order_and_cost_only_those_who_want_them() -> None:
    recorder, deaf = StepRecorder(), EngineObserver()
    assert measuring([deaf, recorder]) == [recorder]
    recorder.measured(STEP)
    assert recorder.steps == [STEP]
