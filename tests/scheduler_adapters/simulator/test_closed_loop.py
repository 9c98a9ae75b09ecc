"""Closed loop: as many requests in flight as clients, never more, and no gap between two."""

import numpy as np
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.workload.requests import make_requests

INSTANCE = Instance(latency=AffineLatency(base_s=0.01, per_token_s=1e-4), kv_blocks=500)


def requests_of(count: int):
    random = np.random.default_rng(0)
    return make_requests(
        prompt_tokens=random.integers(1, 100, count), output_tokens=random.integers(1, 50, count)
    )


@pytest.mark.parametrize("clients", [1, 4, 30])
def test_there_are_always_as_many_requests_as_clients(clients):
    timeline = simulate(requests_of(100), FCFS(), INSTANCE, clients=clients)
    sent_s, finished_s = timeline.requests.arrival_s, timeline.finished_s
    assert summarize(timeline).num_finished == 100
    for now_s in timeline.tick_s:
        in_flight = (sent_s <= now_s).sum() - (finished_s <= now_s).sum()
        unsent = (sent_s > now_s).sum()
        assert in_flight == clients or (unsent == 0 and in_flight < clients)


def test_one_client_has_the_instance_to_itself():
    timeline = simulate(requests_of(20), FCFS(), INSTANCE, clients=1)
    np.testing.assert_array_equal(timeline.requests.arrival_s[1:], timeline.finished_s[:-1])
    np.testing.assert_array_equal(timeline.scheduled_s, timeline.requests.arrival_s)


def test_more_clients_than_requests_is_a_burst():
    timeline = simulate(requests_of(5), FCFS(), INSTANCE, clients=9)
    assert (timeline.requests.arrival_s == 0).all()


def test_no_client_is_refused():
    with pytest.raises(ConfigError, match="clients is 0"):
        simulate(requests_of(5), FCFS(), INSTANCE, clients=0)
