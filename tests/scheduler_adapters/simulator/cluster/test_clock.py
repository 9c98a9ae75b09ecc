"""The clock of a cluster: how often engines are advanced, and clients in a closed loop."""

import numpy as np
import pytest

from scheduler_adapters.placement import Placement, load_placement
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.workload.requests import make_requests

INSTANCE = Instance(latency=AffineLatency(base_s=0.01, per_token_s=1e-4), kv_blocks=60)


def requests_of(count: int):
    random = np.random.default_rng(0)
    prompt_tokens = random.integers(1, 100, count)
    prompt_tokens[::9] = 5000  # which no instance holds
    return make_requests(prompt_tokens=prompt_tokens, output_tokens=random.integers(1, 50, count))


@pytest.mark.parametrize("clients", [1, 4, 300])
def test_there_are_always_as_many_requests_as_clients_and_no_gap(clients):
    requests = requests_of(100)
    run = simulate_cluster(requests, load_placement("least-kv"), FCFS, [INSTANCE], clients=clients)
    timeline = run.timeline.take(~run.timeline.rejected)
    sent_s, finished_s = timeline.requests.arrival_s, timeline.finished_s
    for now_s in timeline.tick_s:
        in_flight = (sent_s <= now_s).sum() - (finished_s <= now_s).sum()
        assert in_flight == clients or ((sent_s > now_s).sum() == 0 and in_flight < clients)
    if clients == 1:
        np.testing.assert_array_equal(sent_s[1:], finished_s[:-1])
        np.testing.assert_array_equal(timeline.scheduled_s, sent_s)


def test_an_untouched_instance_advances_only_for_its_requests(monkeypatch):
    calls = [0, 0]
    advance = Engine.advance

    def counted(engine: Engine, until_s: float) -> float:
        calls[engine.own_view.instance_id] += 1
        return advance(engine, until_s)

    monkeypatch.setattr(Engine, "advance", counted)
    requests = make_requests(
        prompt_tokens=[9] * 21, output_tokens=[9] * 21, arrival_s=np.arange(21) * 0.03
    )
    simulate_cluster(requests, load_placement("round-robin"), FCFS, [INSTANCE] * 2)
    assert calls == [11 + 1, 10 + 1]


def test_only_instances_that_are_looked_at_are_advanced_to_now(monkeypatch):
    class LooksAtOne(Placement):
        name = "looks-at-one"
        seen = ()

        def place(self, request, instances):
            self.seen += (instances[0].num_requests, len(instances), len(instances[1:]))
            return request.number % 2

    advanced = []
    advance = Engine.advance
    monkeypatch.setattr(
        Engine, "advance", lambda engine, s: advanced.append(engine) or advance(engine, s)
    )
    placement = LooksAtOne()
    requests = make_requests(
        prompt_tokens=[5] * 3, output_tokens=[5] * 3, arrival_s=[0, 0.015, 0.02]
    )
    simulate_cluster(requests, placement, FCFS, [INSTANCE] * 3)
    assert placement.seen == (0, 3, 2, 1, 3, 2, 1, 3, 2)
