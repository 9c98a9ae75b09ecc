"""The step that is being filled: limits of rule and engine together, and the requests in it."""

from scheduler_adapters.simulator.engine.request_state import (
    DecodeBatch,
    PriorityLevel,
    RequestState,
)
from scheduler_adapters.simulator.engine.step_contents import StepContents
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.views import RequestView, StepRule

INSTANCE = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=9, max_num_seqs=3, max_tokens=20)


def state_of_row(row: int) -> RequestState:
    return RequestState(RequestView(str(row), row, 0.0, 8), 5, 0)


def test_the_tighter_of_two_limits_holds_and_only_with_a_host_kv_is_copied_to_it():
    step = StepContents(INSTANCE)
    assert (step.budget.max_tokens, step.budget.seats, step.offloads) == (20, 3, False)
    rule = StepRule(max_tokens=30, max_resident=2, offload=True)
    step.set_rule(rule)
    assert (step.budget.max_tokens, step.budget.seats, step.offloads) == (20, 2, False)
    hosted = StepContents(
        Instance(latency=INSTANCE.latency, kv_blocks=9, host=HostLink(kv_bytes_per_token=1))
    )
    hosted.set_rule(rule)
    assert hosted.offloads


def test_a_step_contains_its_prefills_its_batches_and_decodes_placed_alone():
    step = StepContents(INSTANCE)
    level = PriorityLevel(0)
    prefill, decode, alone, other = map(state_of_row, range(4))
    placed, left_out = (DecodeBatch(level, None, 16) for _ in range(2))
    placed.join(decode)
    for request in (alone, other):
        left_out.join(request)
    step.chunks.append((prefill, 8))
    step.batches.append(placed)
    step.walked.add(alone.row)
    states = (prefill, decode, alone, other)
    assert [step.contains(one) for one in states] == [True, True, True, False]
