"""Small runs of a policy on one simulated instance, with the size of each step."""

from dataclasses import replace

import numpy as np

from scheduler_adapters.checks import ObservedLatency, StepSize
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests

INSTANCE = Instance(
    latency=AffineLatency(base_s=0.01, per_token_s=1e-4), kv_blocks=2000, max_num_seqs=64
)


def run(policy: Policy, requests: Requests, **changes) -> tuple[Timeline, list[StepSize]]:
    instance = replace(INSTANCE, **changes)
    observed = ObservedLatency(instance.latency)
    return simulate(requests, policy, replace(instance, latency=observed)), observed.steps


def mixed_requests(count: int = 60, *, seed: int = 0, rate_per_s: float = 10.0) -> Requests:
    random = np.random.default_rng(seed)
    return make_requests(
        prompt_tokens=random.integers(1, 900, count),
        output_tokens=random.integers(1, 80, count),
        arrival_s=arrivals_s(count, rate_per_s=rate_per_s, seed=seed),
        user_class=np.where(np.arange(count) % 2, "paying", "free"),
        tbt_s=np.where(np.arange(count) % 2, 0.1, 0.5),
    )
