"""Every step of an engine has its row, and the summary divides them by kind and size."""

from types import SimpleNamespace

import pytest

from benchmarks.gpu.step_times import COLUMNS, StepTimes, summary


class Scheduler:
    """Two requests, a prefill of 9 tokens and then one token each per step."""

    def __init__(self):
        self.requests = {name: SimpleNamespace(num_computed_tokens=0) for name in "ab"}
        self.waiting = ["c"]

    def schedule(self):
        tokens = 1 if self.requests["a"].num_computed_tokens else 9
        for request in self.requests.values():
            request.num_computed_tokens += tokens
        return SimpleNamespace(num_scheduled_tokens=dict.fromkeys(self.requests, tokens))

    def update_from_output(self, plan):
        return plan


class Engine:
    def __init__(self):
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=Scheduler()))

    def step(self):
        scheduler = self.engine_core.engine_core.scheduler
        return scheduler.update_from_output(scheduler.schedule())


@pytest.fixture
def steps():
    engine, times = Engine(), StepTimes()
    with times.watching(engine):
        for _ in range(3):
            engine.step()
    engine.step()
    assert (
        not {"schedule", "update_from_output"}
        & vars(engine.engine_core.engine_core.scheduler).keys()
    )
    return times.table()


def test_each_step_has_its_batch_and_its_times(steps):
    assert tuple(steps.columns) == COLUMNS
    sizes = steps[["batch", "tokens", "context", "longest", "waiting"]]
    assert sizes.to_numpy().tolist() == [[2, 18, 18, 9, 1], [2, 2, 20, 10, 1], [2, 2, 22, 11, 1]]
    assert (steps.schedule_s > 0).all()
    assert (steps.schedule_s + steps.update_s <= steps.step_s).all()


def test_the_summary_divides_steps_by_kind_batch_and_queue(steps):
    found = summary(steps)
    counts = {name: part["steps"] for name, part in found.items() if isinstance(part, dict)}
    assert counts == {
        **{"all": 3, "decode": 2, "prefill": 1},
        **{f"{kind} batch (0.0, 16.0]": n for kind, n in (("decode", 2), ("prefill", 1))},
        **{f"{kind} waiting (0.0, 250.0]": n for kind, n in (("decode", 2), ("prefill", 1))},
    }
    assert found["mean_context"] == 20.0
