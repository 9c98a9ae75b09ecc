"""Equal decisions of a policy in transformers and in the reference simulator, step by step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler_adapters.engines.transformers_batching.rank_scheduler import use_policy
from scheduler_adapters.planner.request_annotations import annotations_of
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import Policy
from scheduler_adapters.workload.requests import Requests
from tests.scheduler_adapters.engines import decisions
from tests.scheduler_adapters.engines.transformers_batching.test_rank_scheduler import (
    PAGE_SETTING,
    make_manager,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SEATS, BUDGET, PAGE = 8, 128, 16
# Here blocks run out. Before there were pages a request took its next block before it needed it,
# which no plan knows; there KV is plenty.
BLOCKS = 20 if PAGE_SETTING == "page_size" else 96


def workload(seed: int, *, longest: int = 80) -> Requests:
    """Requests for which blocks run out; those of at most 30 tokens always fit."""
    requests = decisions.workload(seed, count=12, longest=longest)
    return replace(requests, output_tokens=requests.output_tokens // 2 + 1)


def steps_of_engine(
    model: Any, policy: Policy | None, requests: Requests, think_end: tuple[int, ...] = ()
) -> tuple[decisions.Steps, list[list[int]]]:
    """The requests of each step, and the tokens of each request; no policy: stock FIFO."""
    hints: dict[str, Any] = {}
    scheduler_type = "fifo"
    if policy is not None:
        scheduler_type = use_policy(policy, hints, think_end=think_end)
    manager = make_manager(
        model,
        scheduler_type,
        num_blocks=BLOCKS,
        max_batch_tokens=BUDGET,
        max_requests_per_batch=SEATS,
        safety_margin=0.0,
    )
    with pytest.MonkeyPatch.context() as patch:
        clock = decisions.Clock()
        patch.setattr(f"{use_policy.__module__}.time.perf_counter", clock)
        return _serve(manager, policy, requests, hints, think_end, clock)


def _serve(
    manager: Any,
    policy: Policy | None,
    requests: Requests,
    hints: dict[str, Any],
    think_end: tuple[int, ...],
    clock: decisions.Clock,
) -> tuple[decisions.Steps, list[list[int]]]:
    processor = manager.batch_processor = manager._create_batch_processor()
    scheduler = processor.scheduler
    if policy is not None:
        scheduler.tracker.clock = clock
    steps: decisions.Steps = []
    added = 0
    outputs: dict[int, list[int]] = {}
    while len(outputs) < len(requests):
        if not scheduler.has_pending_requests():
            clock.now_s = max(clock.now_s, float(requests.arrival_s[added]))
        while added < len(requests) and requests.arrival_s[added] <= clock.now_s:
            hints[str(added)] = annotations_of(requests, added)
            manager.add_request(
                decisions.prompt_of(requests, added, think_end),
                request_id=str(added),
                max_new_tokens=int(requests.output_tokens[added]),
            )
            # The engine stamps arrivals itself, on a clock that is not the virtual one.
            manager.input_queue.queue[-1].created_time = float(requests.arrival_s[added])
            added += 1
        assert processor.prepare_next_batch()
        batch = processor.inputs_and_outputs.requests_in_batch
        steps.append({int(f.state.request_id): f.query_length for f in batch})
        clock.step(sum(steps[-1].values()))
        processor._generation_step(manager.model)
        processor.update_batch()
        while not manager.output_router.output_queue.empty():
            done = manager.output_router.output_queue.get()
            assert done.error is None
            outputs[int(done.request_id)] = list(done.generated_tokens)
    if policy is not None:
        scheduler.clear_cancelled_requests()  # as the next turn begins, so the last step is over
        assert not scheduler._queue
        assert not scheduler.active_requests
    return steps, [outputs[row] for row in range(len(requests))]


def assert_same(
    model: Any, make: Callable[[], Policy], requests: Requests, think_end: tuple[int, ...] = ()
) -> None:
    expected = decisions.steps_of_simulator(
        make(), requests, seats=SEATS, budget=BUDGET, blocks=BLOCKS, block_tokens=PAGE
    )
    actual, outputs = steps_of_engine(model, make(), requests, think_end)
    decisions.assert_same_steps(actual, expected)
    if not think_end or requests.reasoning_tokens.all():
        assert outputs == stock_outputs(model, requests)


def stock_outputs(model: Any, requests: Requests) -> list[list[int]]:
    """Answers of the engine under its own scheduler; served once for the same requests."""
    key = (*requests.prompt_tokens, *requests.output_tokens)
    if key not in _STOCK:
        _, _STOCK[key] = steps_of_engine(model, None, requests)
    return _STOCK[key]


_STOCK: dict[tuple[int, ...], list[list[int]]] = {}


@pytest.mark.parametrize(("displaces", "seed"), [(False, 0), (True, 1)])
def test_any_ranks_and_rules_give_the_steps_of_the_simulator(model, displaces, seed):
    requests = workload(seed)
    if displaces:
        requests = replace(requests, prompt_tokens=requests.prompt_tokens // 3 + 1)
    assert_same(model, lambda: decisions.Dice(seed, chunks="only", displaces=displaces), requests)


POLICIES = decisions.small_policies(BUDGET)


@pytest.mark.parametrize(
    "name",
    ["sarathi by prompt", "slai by class", "rad", "round robin", "shares around groups"],
)
def test_a_policy_gives_the_steps_of_the_simulator(model, name):
    assert_same(model, POLICIES[name], workload(0))


def test_where_kv_is_plenty_the_engines_rules_are_the_simulators(model):
    assert_same(model, lambda: pars(starve_after_s=0.5), workload(1, longest=30))


def test_pascal_sees_the_end_of_thinking_of_the_simulator(model):
    requests = workload(0)
    think_end, thinking = decisions.thoughts_in(stock_outputs(model, requests))
    assert_same(
        model,
        lambda: Pascal(quantum_tokens=12, demote_above_tokens=90),
        replace(requests, reasoning_tokens=np.array(thinking)),
        (think_end,),
    )


def test_pascal_puts_answers_behind_thoughts(model):
    requests = decisions.more_than_seats(4, ends_thinking=False)
    assert_same(model, lambda: Pascal(max_decodes=2), requests, (511,))
