"""The planner of an engine of a few lines."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pytest

from lengthwise.errors import InvalidDecision
from scheduler_adapters.planner.engine_view import EngineView
from scheduler_adapters.planner.planner import Planner
from scheduler_adapters.planner.ranking import RankedQueue, RankedRequest, Ranker
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policy import Policy
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, StepRule
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.planner.fake_engine import FakeEngine, FakeRequest


class Waiting(NamedTuple):
    """A request of an engine that keeps nothing else of it."""

    lengthwise: RankedRequest


class OneBlockEach(EngineView[Waiting]):
    """One block for each request, and a token of each request that ran in a step."""

    max_num_seqs = 64
    max_tokens = 64
    block_tokens = 1000
    total_blocks = 1000
    watermark_blocks = 0

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}

    def output(self, item: Waiting) -> list[int]:
        return self.tokens.setdefault(item.lengthwise.view.number, [])

    def computed(self, item: Waiting) -> int:
        return item.lengthwise.view.prompt_tokens if self.output(item) else 0

    def context(self, item: Waiting) -> int:
        return item.lengthwise.view.prompt_tokens + len(self.output(item))

    def growth(self, items: Sequence[Waiting]) -> int:
        return 0

    def free_blocks(self) -> int:
        return self.total_blocks - sum(map(bool, self.tokens.values()))

    def evict(self, item: Waiting) -> bool:
        raise AssertionError("there are blocks for all")


class Shuffled(Policy):
    """A new place every few tokens, and a step that never holds everybody."""

    name = "shuffled"

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if request.phase <= Phase.PREFILL:
            return Rank()
        dice = random.Random(f"{request.number} {request.generated_tokens}")
        return Rank(
            (dice.random(),),
            lane=dice.randint(0, 1),
            valid_tokens=dice.randint(1, 40),
            evict_key=dice.choice([None, (dice.randint(0, 20),)]),
        )

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(max_decodes=10)


def test_the_first_decodes_in_order_run_and_the_worst_resident_is_known_whoever_moved() -> None:
    ranker, engine = Ranker(Shuffled(), clock=lambda: 0.0), OneBlockEach()
    queue: RankedQueue[Waiting] = RankedQueue()
    planner = Planner(ranker, engine, queue)
    dice = random.Random(0)
    live: dict[str, Waiting] = {}
    for step in range(600):
        while len(queue) < 2:
            new = ranker.track(f"{step} {len(queue)}", age_s=0.0, prompt_tokens=1, carried=None)
            queue.add(Waiting(new))
        decodes = dict(planner.residents.decoding)
        plan = planner.plan()
        assert plan is not None
        by_rank = sorted(
            (item.lengthwise for item in decodes.values()),
            key=lambda one: (one.rank.lane, one.rank.key, one.view.number),
        )
        left_out = {item.lengthwise.view.number for item in plan.left_out}
        assert left_out == {one.view.number for one in by_rank[10:]}
        for item in plan.admitted:
            queue.remove(item.lengthwise.view.number)
            planner.residents.admitted(item)
            live[item.lengthwise.view.request_id] = item
        for item in live.values():
            if item.lengthwise.view.number not in left_out:
                engine.output(item).append(0)
        ranker.end_step(0.0)
        if dice.random() < 0.5 and planner.residents.decoding:
            gone = dice.choice(list(planner.residents.decoding))
            planner.residents.left(gone)
            engine.tokens.pop(live.pop(gone).lengthwise.view.number)
        planner.residents.step_ended()
        keys = [item.lengthwise.rank.evict_key for item in planner.residents]
        limit = (dice.randint(0, 20),)
        assert planner.residents.any_after(limit) == any(key and key > limit for key in keys)


@pytest.mark.parametrize("answer", [ZeroDivisionError("boom"), None, 512])
def test_a_rule_that_is_none_stops_the_step_and_names_the_policy(answer: Any) -> None:
    class Broken(Shuffled):
        name = "broken"

        def step_rule(self, load: LoadView) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    ranker = Ranker(Broken(), clock=lambda: 0.0)
    queue: RankedQueue[Waiting] = RankedQueue()
    planner = Planner(ranker, OneBlockEach(), queue)
    new = ranker.track("0", age_s=0.0, prompt_tokens=1, carried=None)
    queue.add(Waiting(new))
    with pytest.raises(InvalidDecision, match=r"policy 'broken' .* the rule of step 0"):
        planner.plan()
    assert len(queue) == 1


class Whole(FCFS):
    """Prompts in one step each."""

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(whole_prompts=True)


def test_a_prompt_that_no_step_can_hold_is_planned_in_chunks() -> None:
    engine = FakeEngine(Whole(), seats=2, budget=16, blocks=10, block_tokens=16)
    requests = make_requests(prompt_tokens=[40], output_tokens=[2])
    assert engine.serve(requests) == [{0: 16}, {0: 16}, {0: 8}, {0: 1}]


def test_the_last_token_of_a_step_admits_a_prompt_of_one_token() -> None:
    engine = FakeEngine(Whole(), seats=2, budget=9, blocks=10, block_tokens=16)
    requests = make_requests(prompt_tokens=[8, 1], output_tokens=[1, 1])
    assert engine.serve(requests) == [{0: 8, 1: 1}]


@pytest.mark.parametrize(("blocks", "is_asked"), [(3, True), (4, False)])
def test_blocks_kept_for_reuse_are_asked_for_only_where_the_next_tokens_lack_some(
    blocks: int, is_asked: bool
) -> None:
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


def test_work_that_can_run_does_though_the_rule_places_none() -> None:
    engine = FakeEngine(Closed(), seats=2, budget=16, blocks=10, block_tokens=16)
    requests = make_requests(prompt_tokens=[8, 8, 8], output_tokens=[2, 1, 1])
    assert engine.serve(requests) == [{0: 8, 1: 8}, {0: 1}, {2: 8}]


def test_an_engine_without_requests_has_no_plan() -> None:
    engine = FakeEngine(FCFS(), seats=2, budget=16, blocks=10, block_tokens=16)
    assert engine.planner.plan() is None


def test_residents_that_a_step_leaves_out_are_counted() -> None:
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
