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
from tests.scheduler_adapters.simulator.any_policy import state_of
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


def test_a_withdrawn_request_is_no_longer_counted():
    seen = telemetry(REQUEST, REQUEST._replace(request_id="b", reasoning_tokens=1))
    assert counts(seen, 2.0) == (1, 1)
    seen.engine.withdraw(state_of(seen.engine, "a"))
    seen.engine.withdraw(state_of(seen.engine, "b"))
    assert counts(seen, 2.0) == (0, 0)


def test_what_is_on_its_way_is_booked():
    elsewhere = telemetry(REQUEST, REQUEST._replace(request_id="b", reasoning_tokens=9))
    elsewhere.engine.advance(4.0)
    answers, thinks = elsewhere.requests
    for live in (answers, thinks):
        elsewhere.engine.withdraw(live)
    seen = telemetry()
    seen.booked = {answers: 3, thinks: 0}
    view = seen.view()
    assert (view.instance_id, view.num_waiting, view.booked_blocks) == (4, 2, 3)
    assert (view.num_thinking, view.num_fresh_answering, view.free_blocks) == (1, 1, 17)
    del seen.booked[answers]
    assert (seen.view().num_waiting, seen.view().booked_blocks) == (1, 0)


def test_a_reader_has_read_all_some_time_after_an_eviction():
    # Each needs a ninth block after a while, of 17: the later one is evicted in its answer.
    one = REQUEST._replace(prompt_tokens=120, output_tokens=30, reasoning_tokens=2)
    other = one._replace(request_id="b", output_tokens=20, arrival_s=0.5)
    seen = telemetry(one, other, kv_blocks=17)
    seen.engine.advance(1.5)
    assert seen.view().paced_until_s == np.inf
    seen.engine.advance(14.5)
    (answer,) = (live for live in seen.requests if live.is_waiting)
    token_s = seen.engine.token_s(answer)[2:]
    read_s = token_s[0]
    for at_s in token_s[1:]:
        read_s = max(at_s, read_s + 1.5)
    assert seen.view().paced_until_s == pytest.approx(read_s + 1.5)
    assert len(token_s) > 3
    seen.engine.advance(1000.0)
    assert seen.view().paced_until_s == np.inf


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


def test_what_is_to_be_prefilled_is_whole_prompts_then_the_rest_of_them():
    engine = Engine(FCFS(), replace(SECONDS, max_tokens=10, kv_blocks=4))
    seen = Telemetry(engine, None, watches_prefills=True)
    for request_id in "ab":
        engine.submit(REQUEST._replace(request_id=request_id, reasoning_tokens=0))
        seen.submitted(engine.requests[-1])
    found = []
    for at_s in (0.0, 1.0, 2.0, 4.0):
        engine.advance(at_s)
        view = seen.view()
        found.append((view.prefill_tokens, view.prefill_squares))
    # 16 each, ten tokens a step: 6 of the first are left, then 12 of the second, then none.
    assert found == [(32, 512), (22, 512 - 100), (12, 256 - 16), (0, 0)]
    assert sorted(request.request_id for request in seen.view().decodes()) == ["a", "b"]
    engine.withdraw(state_of(engine, "a"))
    assert [request.request_id for request in seen.view().decodes()] == ["b"]


def test_a_prefill_counts_until_its_step_has_ended():
    engine = Engine(FCFS(), replace(SECONDS, max_tokens=10))
    seen = Telemetry(engine, None, watches_prefills=True)
    engine.submit(REQUEST._replace(reasoning_tokens=0))
    seen.submitted(engine.requests[-1])
    found = []
    for at_s in (0.5, 1.0, 1.5, 2.0):
        engine.advance(at_s)
        view = seen.view(at_s)
        found.append((view.prefill_tokens, view.prefill_squares, seen.is_changing(at_s)))
    # Ten tokens until 1 s, six more until 2 s.
    assert found == [(16, 256, True), (6, 156, False), (6, 156, True), (0, 0, False)]


def test_who_is_evicted_is_to_be_prefilled_again():
    engine = Engine(FCFS(), replace(SECONDS, kv_blocks=3))
    seen = Telemetry(engine, None, watches_prefills=True)
    for request_id in "ab":
        engine.submit(REQUEST._replace(request_id=request_id, prompt_tokens=15, output_tokens=30))
        seen.submitted(engine.requests[-1])
    engine.advance(4.0)  # both have filled a block, and one block is left for two
    view = seen.view()
    (waiting,) = (live for live in engine.requests if live.is_waiting)
    assert (view.prefill_tokens, view.prefill_squares) == (waiting.context, waiting.context**2)
    assert view.num_waiting == 1
    engine.withdraw(waiting)
    assert (seen.view().prefill_tokens, seen.view().prefill_squares) == (0, 0)
