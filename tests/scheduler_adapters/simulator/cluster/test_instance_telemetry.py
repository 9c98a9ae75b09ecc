"""Views of one instance: counts by limits, bookings, and when a reader has read all."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.placement import Watch
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster.cluster_instance import ClusterInstance
from scheduler_adapters.simulator.cluster.instance_telemetry import WatchedCounts, read_all_s
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.views import StepRule
from tests.scheduler_adapters.simulator.any_policy import request_of
from tests.scheduler_adapters.simulator.cluster.test_request_migrations import SECONDS

WATCH = Watch(quantum_tokens=4, demote_above_tokens=40, pace_s=1.5)


class FewDecodes(FCFS):
    def __init__(self, max_decodes: int) -> None:
        self.rule = StepRule(max_decodes=max_decodes)


def instance_with(request: RequestState) -> ClusterInstance:
    seen = ClusterInstance(Engine(FCFS(), SECONDS), WATCH, watches_prefills=False)
    seen.submit(0, request, None)
    return seen


def counts(seen: ClusterInstance, at_s: float) -> tuple[int, int]:
    seen.advance(at_s)
    seen.renew_view()
    return seen.view.num_thinking, seen.view.num_fresh_answering


def test_a_request_thinks_until_its_thinking_ends_and_is_fresh_for_a_quantum():
    seen = instance_with(request_of(reasoning_tokens=3))
    found = [counts(seen, at_s) for at_s in (0.0, 2.0, 3.0, 6.0, 7.0, 100.0)]
    assert found == [(1, 0), (1, 0), (0, 1), (0, 1), (0, 0), (0, 0)]


def test_a_request_that_does_not_reason_thinks_until_its_first_token():
    seen = instance_with(request_of())
    assert [counts(seen, at_s) for at_s in (0.0, 1.0, 4.0, 5.0)] == [(1, 0), (0, 1), (0, 0), (0, 0)]


def test_long_reasoning_is_not_counted_and_what_never_answers_leaves():
    seen = instance_with(request_of(prompt_tokens=36, reasoning_tokens=10))
    assert [counts(seen, at_s) for at_s in (0.0, 4.0, 5.0)] == [(1, 0), (1, 0), (0, 0)]
    seen = instance_with(request_of(reasoning_tokens=10))
    assert [counts(seen, at_s) for at_s in (9.0, 10.0)] == [(1, 0), (0, 0)]
    assert counts(instance_with(request_of(prompt_tokens=41, reasoning_tokens=3)), 0.0) == (0, 0)


@pytest.mark.parametrize("max_decodes", [1, 2])
def test_a_decode_that_is_left_out_of_steps_may_let_its_reader_wait(max_decodes):
    engine = Engine(FewDecodes(max_decodes), SECONDS)
    seen = WatchedCounts(engine, replace(WATCH, pace_s=0.2))
    for request_id in "abc"[: max_decodes + 1]:
        engine.submit(request_of(request_id))
    engine.advance(5.0)  # the last has one token from its prefill, until another is done
    assert seen.paced_until_s() == 1.0 + 0.2
    seen.dry.append((0.5, max_decodes, 1))  # noted earlier, of an answer that is still as long
    assert seen.paced_until_s() == 0.5
    engine.advance(12.0)
    assert seen.paced_until_s() == np.inf


def test_when_all_is_read_follows_the_pacer_token_by_token():
    random = np.random.default_rng(3)
    for count in (1, 2, 50):
        token_s = np.cumsum(random.exponential(0.1, count))
        read_s = -np.inf
        for at_s in token_s:
            read_s = max(at_s, read_s + 0.1)
        assert read_all_s(token_s, 0.1) == pytest.approx(read_s + 0.1)
