"""Views of one instance: counts by limits, bookings, and when a reader has read all."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.placement import Watch
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster.instance_telemetry import WatchedCounts, read_all_s
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.views import StepRule
from tests.scheduler_adapters.simulator.any_policy import request_of
from tests.scheduler_adapters.simulator.cluster.test_request_migrations import SECONDS

WATCH = Watch(quantum_tokens=4, demote_above_tokens=40, pace_s=1.5)


class FewDecodes(FCFS):
    def __init__(self, max_decodes: int) -> None:
        self.rule = StepRule(max_decodes=max_decodes)


@pytest.mark.parametrize("max_decodes", [1, 2])
def test_a_decode_left_out_of_steps_may_let_its_reader_wait(max_decodes):
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
