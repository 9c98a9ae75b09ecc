"""The view of one instance of a cluster: its requests by the limits of a watch, and bookings."""

from scheduler_adapters.placement import Watch
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster.cluster_instance import ClusterInstance
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState
from tests.scheduler_adapters.simulator.any_policy import request_of
from tests.scheduler_adapters.simulator.cluster.test_request_migrations import SECONDS

WATCH = Watch(quantum_tokens=4, demote_above_tokens=40, pace_s=1.5)


def instance_with(request: RequestState) -> ClusterInstance:
    seen = ClusterInstance(Engine(FCFS(), SECONDS), WATCH, watches_prefills=False)
    seen.submit(0, request, None)
    return seen


def counts(seen: ClusterInstance, at_s: float) -> tuple[int, int]:
    seen.advance(at_s)
    seen.renew_view()
    return seen.view.num_thinking, seen.view.num_fresh_answering


def test_a_request_thinks_to_its_end_and_is_fresh_for_a_quantum():
    seen = instance_with(request_of(reasoning_tokens=3))
    found = [counts(seen, at_s) for at_s in (0.0, 2.0, 3.0, 6.0, 7.0, 100.0)]
    assert found == [(1, 0), (1, 0), (0, 1), (0, 1), (0, 0), (0, 0)]


def test_a_request_without_reasoning_thinks_until_a_first_token():
    seen = instance_with(request_of())
    assert [counts(seen, at_s) for at_s in (0.0, 1.0, 4.0, 5.0)] == [(1, 0), (0, 1), (0, 0), (0, 0)]


def test_long_reasoning_is_not_counted_and_silent_ones_leave():
    seen = instance_with(request_of(prompt_tokens=36, reasoning_tokens=10))
    assert [counts(seen, at_s) for at_s in (0.0, 4.0, 5.0)] == [(1, 0), (1, 0), (0, 0)]
    seen = instance_with(request_of(reasoning_tokens=10))
    assert [counts(seen, at_s) for at_s in (9.0, 10.0)] == [(1, 0), (0, 0)]
    assert counts(instance_with(request_of(prompt_tokens=41, reasoning_tokens=3)), 0.0) == (0, 0)


def test_a_booked_request_counts_until_its_booking_is_cancelled():
    seen, moving = instance_with(request_of()), request_of("moving", reasoning_tokens=3)
    seen.book(moving, 2)
    assert counts(seen, 0.0) == (2, 0)
    assert (seen.view.num_waiting, seen.view.booked_blocks) == (2, 2)
    seen.cancel_booking(moving)
    assert counts(seen, 0.0) == (1, 0)
