"""Views of one instance: counts by limits, bookings, and when a reader has read all."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.placement import Watch
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster.instance_telemetry import Telemetry, read_all_s
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.simulated_request import SimulatedRequest
from scheduler_adapters.views import StepRule
from tests.scheduler_adapters.simulator.cluster.test_request_migrations import SECONDS

REQUEST = SimulatedRequest("a", 0.0, prompt_tokens=16, output_tokens=10, reasoning_tokens=3)
WATCH = Watch(quantum_tokens=4, demote_above_tokens=40, pace_s=1.5)


class FewDecodes(FCFS):
    def __init__(self, max_decodes: int) -> None:
        self.rule = StepRule(max_decodes=max_decodes)


def telemetry(*requests: SimulatedRequest, watch: Watch | None = WATCH, **changes) -> Telemetry:
    engine = Engine(FCFS(), replace(SECONDS, **changes), instance_id=4)
    seen = Telemetry(engine, watch)
    for request in requests:
        engine.submit(request)
        seen.submitted(engine.requests[-1])
    return seen


def counts(seen: Telemetry, at_s: float) -> tuple[int, int]:
    seen.engine.advance(at_s)
    view = seen.view()
    return view.num_thinking, view.num_fresh_answering


def test_a_request_thinks_until_its_thinking_ends_and_is_fresh_for_a_quantum():
    seen = telemetry(REQUEST)
    found = [counts(seen, at_s) for at_s in (0.0, 2.0, 3.0, 6.0, 7.0, 100.0)]
    assert found == [(1, 0), (1, 0), (0, 1), (0, 1), (0, 0), (0, 0)]


def test_a_request_that_does_not_reason_thinks_until_its_first_token():
    seen = telemetry(REQUEST._replace(reasoning_tokens=0))
    assert [counts(seen, at_s) for at_s in (0.0, 1.0, 4.0, 5.0)] == [(1, 0), (0, 1), (0, 0), (0, 0)]


def test_long_reasoning_is_not_counted_and_what_never_answers_leaves():
    long = REQUEST._replace(prompt_tokens=36, output_tokens=10, reasoning_tokens=10)
    assert [counts(telemetry(long), at_s) for at_s in (0.0, 4.0, 5.0)] == [(1, 0), (1, 0), (0, 0)]
    seen = telemetry(REQUEST._replace(reasoning_tokens=10))
    assert [counts(seen, at_s) for at_s in (9.0, 10.0)] == [(1, 0), (0, 0)]
    assert counts(telemetry(REQUEST._replace(prompt_tokens=41)), 0.0) == (0, 0)


@pytest.mark.parametrize("max_decodes", [1, 2])
def test_a_decode_that_is_left_out_of_steps_may_let_its_reader_wait(max_decodes):
    engine = Engine(FewDecodes(max_decodes), SECONDS)
    seen = Telemetry(engine, replace(WATCH, pace_s=0.2))
    for request_id in "abc"[: max_decodes + 1]:
        engine.submit(REQUEST._replace(request_id=request_id, reasoning_tokens=0))
    engine.advance(5.0)  # the last has one token from its prefill, until another is done
    assert seen.view().paced_until_s == 1.0 + 0.2
    seen.dry.append((0.5, max_decodes, 1))  # noted earlier, of an answer that is still as long
    assert seen.view().paced_until_s == 0.5
    engine.advance(12.0)
    assert seen.view().paced_until_s == np.inf


def test_when_all_is_read_follows_the_pacer_token_by_token():
    random = np.random.default_rng(3)
    for count in (1, 2, 50):
        token_s = np.cumsum(random.exponential(0.1, count))
        read_s = -np.inf
        for at_s in token_s:
            read_s = max(at_s, read_s + 0.1)
        assert read_all_s(token_s, 0.1) == pytest.approx(read_s + 0.1)
