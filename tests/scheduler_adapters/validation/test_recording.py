"""The recorder of an engine, told by hand, and the replay of its decisions."""

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.timeline.observer import EngineObserver, measuring
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.validation.recording import (
    Admitted,
    Queued,
    Recorder,
    StepRecorder,
    replay,
)
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


def queued(number: int, score: float, at_s: float = 0.0) -> Queued:
    view = RequestView(str(number), number, at_s, 4, score=score)
    return Queued(view, LoadView(now_s=at_s))


def admitted(*numbers: int, at_s: float = 1.0) -> Admitted:
    return Admitted(numbers, LoadView(now_s=at_s))


ARRIVED = [queued(0, 30.0), queued(1, 10.0), queued(2, 20.0)]


def test_the_order_of_the_policy_agrees_and_another_does_not() -> None:
    in_order = [*ARRIVED, admitted(1, 2), queued(3, 5.0), admitted(3), admitted(0)]
    assert replay(pars(), in_order) == (4, 4)
    assert replay(FCFS(), in_order)[1] == 1


def test_a_rank_that_has_ended_by_the_time_of_the_decision_counts_no_more() -> None:
    starved = [*ARRIVED, queued(3, 1.0, at_s=90.0), admitted(0, 1, 2, 3, at_s=121.0)]
    assert replay(pars(starve_after_s=120.0), starved)[1] == 4
    in_time = [*starved[:-1], admitted(0, 1, 2, 3, at_s=119.0)]
    assert replay(pars(starve_after_s=120.0), in_time)[1] < 4
