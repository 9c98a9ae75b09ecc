"""The front door: requests, a policy and an instance in; a timeline out."""

from __future__ import annotations

from scheduler_adapters.experiments.timeline import Timeline
from scheduler_adapters.experiments.workload import Requests
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine import Engine
from scheduler_adapters.simulator.instance import Instance


def simulate(requests: Requests, policy: Policy, instance: Instance) -> Timeline:
    """Serve `requests` under `policy` on one `instance` in virtual time; equal input, equal bytes.

    A request that the instance's KV memory cannot hold even alone is rejected and reported.

    Raises:
        InvalidDecision: the policy raised, or ranked with NaN.
        SchedulingError: requests evict each other without end.
    """
    return Engine(policy, instance).run(requests)
