"""The planner of an engine of a few lines."""

from collections.abc import Iterable
from typing import Any

import pytest

from lengthwise.errors import InvalidDecision
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.views import LoadView, StepRule
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.planner.fake_engine import FakeEngine, FakeRequest


@pytest.mark.parametrize("answer", [ZeroDivisionError("boom"), None, 512])
def test_a_rule_that_is_none_stops_the_step_and_names_the_policy(answer):
    class Broken(FCFS):
        name = "broken"

        def step_rule(self, load: LoadView) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    engine = FakeEngine(Broken(), seats=2, budget=16, blocks=10, block_tokens=16)
    engine._submit(make_requests(prompt_tokens=[1], output_tokens=[1]), 0)
    with pytest.raises(InvalidDecision, match=r"policy 'broken' .* the rule of step 0"):
        engine.planner.plan()
    assert len(engine.queue) == 1


class Whole(FCFS):
    """Prompts in one step each."""

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(whole_prompts=True)


def test_a_prompt_that_no_step_can_hold_is_planned_in_chunks():
    engine = FakeEngine(Whole(), seats=2, budget=16, blocks=10, block_tokens=16)
    requests = make_requests(prompt_tokens=[40], output_tokens=[2])
    assert engine.serve(requests) == [{0: 16}, {0: 16}, {0: 8}, {0: 1}]


def test_the_last_token_of_a_step_admits_a_prompt_of_one_token():
    engine = FakeEngine(Whole(), seats=2, budget=9, blocks=10, block_tokens=16)
    assert engine.serve(make_requests(prompt_tokens=[8, 1], output_tokens=[1, 1])) == [{0: 8, 1: 1}]


@pytest.mark.parametrize(("blocks", "is_asked"), [(3, True), (4, False)])
def test_blocks_kept_for_reuse_are_asked_for_only_where_the_next_tokens_lack_some(blocks, is_asked):
    asked: list[int] = []

    class Keeping(FakeEngine):
        def release(self, items: Iterable[FakeRequest]) -> None:
            asked.append(len(list(items)))

    engine = Keeping(FCFS(), seats=2, budget=99, blocks=blocks, block_tokens=16)
    requests = make_requests(prompt_tokens=[16, 16], output_tokens=[3, 3])
    for row in range(2):
        engine._submit(requests, row)
    engine._step()
    assert engine.free_blocks() == blocks - 2
    asked.clear()
    engine.planner.plan()
    assert asked == [2] * is_asked


class Closed(FCFS):
    """Admits nothing, whatever waits."""

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(max_admissions=0)


def test_work_that_can_run_does_though_the_rule_places_none():
    engine = FakeEngine(Closed(), seats=2, budget=16, blocks=10, block_tokens=16)
    requests = make_requests(prompt_tokens=[8, 8, 8], output_tokens=[2, 1, 1])
    assert engine.serve(requests) == [{0: 8, 1: 8}, {0: 1}, {2: 8}]


def test_an_engine_without_requests_has_no_plan():
    engine = FakeEngine(FCFS(), seats=2, budget=16, blocks=10, block_tokens=16)
    assert engine.planner.plan() is None


def test_residents_that_a_step_leaves_out_are_counted():
    engine = FakeEngine(Sarathi(max_tokens=2), seats=4, budget=16, blocks=10, block_tokens=16)
    requests = make_requests(prompt_tokens=[1, 1, 1], output_tokens=[3, 3, 3])
    steps = engine.serve(requests)
    assert steps == [{0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1, 1: 1}, {2: 1}, {2: 1}, {2: 1}]
    assert engine.planner.num_deferred == 0
    engine = FakeEngine(OneDecode(), seats=4, budget=16, blocks=10, block_tokens=16)
    assert engine.serve(requests) == [{0: 1, 1: 1, 2: 1}] + [{row: 1} for row in (0, 0, 1, 1, 2, 2)]
    assert engine.planner.num_deferred == 2 + 2 + 1 + 1


class OneDecode(FCFS):
    """One decode per step."""

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(max_decodes=1)
