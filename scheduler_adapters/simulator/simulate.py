"""Requests, a policy and an instance in; a timeline out."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from math import inf
from typing import Literal

import numpy as np

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.engine import Engine, uncollected
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline, join_timelines
from scheduler_adapters.workload.requests import Requests

LoopName = Literal["auto", "python", "compiled"]
EngineKind = Literal["plain", "vllm"]
_WORTH_COMPILING = 20_000
"""Least number of requests for which loading the compiled loops, a second, pays."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; `timeline` holds what had happened by then."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self.timeline = timeline


def simulate(
    requests: Requests,
    policy: Policy,
    instance: Instance,
    *,
    loop: LoopName = "auto",
    kind: EngineKind = "plain",
    observers: Sequence[EngineObserver] = (),
) -> Timeline:
    """Serve `requests` under `policy` on one `instance` in virtual time; equal input, equal bytes.

    A request that the instance's KV memory cannot hold even alone is rejected and reported.

    Args:
        loop: "compiled" runs a compiled loop where one supports the policy, "auto" only for many
            requests. All loops give the same bytes.
        kind: "vllm" adds async scheduling and prefix caching, two defaults of vLLM.
        observers: called by the loop in plain Python only.

    Raises:
        UnsupportedByEngine: the policy requires what the instance cannot do.
        InvalidDecision: the policy raised, or ranked with NaN.
        SchedulingError: requests evict each other without end, or a step is beyond the time tables.
        Interrupted: Ctrl-C, in the loop in plain Python.
    """
    instance.check(policy)
    wants = loop == "compiled" or (loop == "auto" and len(requests) >= _WORTH_COMPILING)
    if wants and kind == "plain" and find_spec("numba") is not None:
        # Imported late: numba takes a second, and most runs do without it.
        from scheduler_adapters.simulator.compiled.run import run_compiled

        if (timeline := run_compiled(requests, policy, instance)) is not None:
            return timeline
    engine = Engine(policy, instance, vllm=kind == "vllm", observers=observers)
    try:
        with uncollected():
            engine.submit_all(requests)
            engine.advance(inf)
    except KeyboardInterrupt as error:
        raise Interrupted(engine.timeline(requests)) from error
    return engine.timeline(requests)


def simulate_replicas(
    requests: Requests,
    make_policy: Callable[[], Policy],
    instance: Instance,
    *,
    replicas: int,
    loop: LoopName = "auto",
) -> Timeline:
    """Serve `requests` on equal instances, request i on instance i modulo `replicas`.

    Raises as `simulate` does.
    """
    rows = [np.arange(first, len(requests), replicas) for first in range(replicas)]
    parts = [simulate(requests.take(row), make_policy(), instance, loop=loop) for row in rows]
    return parts[0] if replicas == 1 else join_timelines(requests, parts, rows)
