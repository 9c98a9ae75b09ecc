"""The recorder of an engine, told by hand."""

from scheduler_adapters.timeline.observer import EngineObserver, measuring
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.validation.recording import StepRecorder

STEP = StepRecord(1, 5, 0, 0, 0.0, 0.01)


def test_steps_are_kept_in_order_and_cost_only_those_who_want_them() -> None:
    recorder, deaf = StepRecorder(), EngineObserver()
    assert measuring([deaf, recorder]) == [recorder]
    recorder.measured(STEP)
    assert recorder.steps == [STEP]
