"""Steps and evictions that are planned for an engine in plain Python."""

from collections.abc import Iterable
from typing import Any

import pytest

from lengthwise.errors import InvalidDecision
from scheduler_adapters.planner.planner import displace, secure_block
from scheduler_adapters.planner.step_budget import Step, StepBudget
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policy import Policy
from scheduler_adapters.views import UNLIMITED, LoadView, Rank, RequestView, StepRule
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
def test_kept_blocks_are_released_only_where_tokens_lack_some(blocks, is_asked):
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


class ByScore(Policy):
    """The greatest score is evicted first; one without evicts no other."""

    name = "by-score"

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        key = None if request.score is None else (request.score,)
        return Rank(key or (), evict_key=key)


def wait(engine: FakeEngine, *scores: float, prompt: int = 10) -> None:
    count = len(scores)
    requests = make_requests(
        prompt_tokens=[prompt] * count, output_tokens=[9] * count, scores=list(scores)
    )
    for row in range(count):
        engine._submit(requests, row)


def engine_with(
    *scores: float, prompt: int = 16, priorities: list[int] | None = None
) -> tuple[FakeEngine, list[FakeRequest]]:
    """An engine of 4 blocks after a step in which each of these requests got its first token."""
    limits = {"seats": 4, "budget": 99, "blocks": 4, "block_tokens": 16}
    engine = FakeEngine(ByScore(), **limits, priorities=priorities)
    wait(engine, *scores, prompt=prompt)
    engine._step()
    return engine, sorted(engine.running, key=lambda item: item.row)


def begin(engine: FakeEngine, rule: StepRule = UNLIMITED) -> Step[FakeRequest]:
    return Step(StepBudget(rule, max_tokens=99, max_num_seqs=4), engine.free_blocks(), set())


NAN = float("nan")


@pytest.mark.parametrize(
    ("scores", "priorities", "asker", "evicted"),
    [
        ([1.0, 2.0, 3.0, 4.0], None, 3, 3),
        ([1.0, NAN, NAN, NAN], None, 0, 0),
        ([1.0, NAN, NAN, NAN], [0, 0, 0, 1], 0, 3),
    ],
    ids=["the worst goes itself", "without evict key for no other", "but for a better priority"],
)
def test_one_goes_for_a_block(scores, priorities, asker, evicted):
    engine, residents = engine_with(*scores, priorities=priorities)
    step = begin(engine)
    assert secure_block(engine.planner.residents, step, residents[asker]) == (asker != evicted)
    assert step.evicted == {residents[evicted].lengthwise.view.number}
    assert step.free_blocks == (asker == evicted)


@pytest.mark.parametrize(
    ("scores", "prompt", "free_blocks"),
    [([1.0, 5.0, 6.0, 7.0], 10, 1), ([1.0, 1.0, 1.0, 7.0], 40, 0)],
    ids=["only a seat is missing", "it would not make enough room"],
)
def test_nobody_goes_in_vain(scores, prompt, free_blocks):
    engine, _ = engine_with(*scores, prompt=8)
    wait(engine, 2.0, prompt=prompt)
    step = begin(engine)
    step.free_blocks = free_blocks
    displace(engine.planner.residents, engine.queue, step)
    assert (step.seated, step.evicted) == ([], set())


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (2, 2), (None, 3)])
def test_the_limit_of_admissions_holds_while_displacing(limit, count):
    engine, _ = engine_with(9.0, 9.0, 9.0, 1.0, prompt=8)
    wait(engine, 2.0, 3.0, 4.0, 5.0)
    step = begin(engine, StepRule(max_admissions=limit))
    displace(engine.planner.residents, engine.queue, step)
    assert len(step.seated) == len(step.evicted) == count


def test_a_request_that_was_just_evicted_does_not_displace():
    engine, (_, second, *_) = engine_with(9.0, 1.0, 8.0, 7.0)
    engine.evict(second)
    step = begin(engine)
    step.evicted.add(second.lengthwise.view.number)
    displace(engine.planner.residents, engine.queue, step)
    assert step.seated == []


def test_blocks_that_the_engine_cannot_free_now_evict_nobody():
    engine, (best, *_) = engine_with(1.0, 2.0, 3.0, 4.0)
    wait(engine, 0.5)
    step = begin(engine)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(engine, "evict", lambda item: False)
        assert not secure_block(engine.planner.residents, step, best)
        displace(engine.planner.residents, engine.queue, step)
    assert (step.seated, step.evicted, step.free_blocks) == ([], set(), 0)
    assert len(engine.running) == 4
