"""Round-robin by quanta of tokens."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings, strategies as st

from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.policies.small_runs import mixed_requests, run


def test_round_robin_serves_the_young_first():
    requests = make_requests(prompt_tokens=[16] * 3, output_tokens=[40, 40, 5])
    requests = replace(requests, arrival_s=np.array([0.0, 0.0, 0.2]))
    policy = RoundRobin(quantum_tokens=10)
    # Blocks for two: the newcomer takes those of one that has used a quantum.
    timeline, _ = run(policy, requests, kv_blocks=7, watermark_fraction=0.0)
    assert timeline.preemptions.sum() >= 1
    assert timeline.finished_s[2] < timeline.finished_s[:2].min()
    # Seats for two and blocks for all: it waits for a seat.
    timeline, _ = run(policy, requests, max_num_seqs=2)
    assert timeline.preemptions.sum() == 0
    assert timeline.finished_s[2] > timeline.finished_s[:2].min()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_round_robin_with_an_endless_quantum_is_fcfs(seed):
    requests = mixed_requests(40, seed=seed)
    endless, _ = run(RoundRobin(quantum_tokens=10**9), requests)
    plain, _ = run(Sarathi(max_tokens=2048), requests)
    np.testing.assert_array_equal(endless.finished_s, plain.finished_s)
