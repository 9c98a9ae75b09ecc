"""The front door: requests, a policy and an instance in; a timeline out."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

import numpy as np

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.timeline import Timeline, join_timelines
from scheduler_adapters.workload.requests import Requests

EngineName = Literal["auto", "python", "compiled"]
_WORTH_COMPILING = 20_000
"""Requests from which on loading the compiled loops (a second) pays."""


def simulate(
    requests: Requests,
    policy: Policy,
    instance: Instance,
    *,
    engine: EngineName = "auto",
    make_engine: Callable[[Policy, Instance], Engine] = Engine,
) -> Timeline:
    """Serve `requests` under `policy` on one `instance` in virtual time; equal input, equal bytes.

    A request that the instance's KV memory cannot hold even alone is rejected and reported. The two
    engines give the same bytes; "auto" and "compiled" take the compiled one where it can do the
    policy, "auto" only for many requests. `make_engine` makes the one in plain Python, where it is
    to be another one of the same rules, such as one that reports its progress.

    Raises:
        UnsupportedByEngine: the policy requires what the instance cannot do.
        InvalidDecision: the policy raised, or ranked with NaN.
        SchedulingError: requests evict each other without end, or a step is beyond the time tables.
    """
    instance.check(policy)
    wants = engine == "compiled" or (engine == "auto" and len(requests) >= _WORTH_COMPILING)
    if wants and find_spec("numba") is not None:
        # Imported late: numba takes a second, and most runs do without it.
        from scheduler_adapters.simulator.compiled.loop import run_compiled
        from scheduler_adapters.simulator.compiled.slai import run_compiled_slai

        for run in (run_compiled, run_compiled_slai):
            timeline = run(requests, policy, instance)
            if timeline is not None:
                return timeline
    return make_engine(policy, instance).run(requests)


def simulate_replicas(
    requests: Requests,
    make_policy: Callable[[], Policy],
    instance: Instance,
    *,
    replicas: int,
    engine: EngineName = "auto",
) -> Timeline:
    """Serve `requests` on equal instances, request i on instance i modulo `replicas`.

    Raises as `simulate` does.
    """
    rows = [np.arange(first, len(requests), replicas) for first in range(replicas)]
    parts = [simulate(requests.take(row), make_policy(), instance, engine=engine) for row in rows]
    return parts[0] if replicas == 1 else join_timelines(requests, parts, rows)
