"""Requests, a policy and an instance in; a timeline out."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from math import inf
from typing import Literal

import numpy as np

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.closed_loop import ClosedLoop
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
    clients: int | None = None,
    observers: Sequence[EngineObserver] = (),
) -> Timeline:
    """Serve `requests` under `policy` on one `instance` in virtual time; equal input, equal bytes.

    A request that the instance's KV memory cannot hold even alone is rejected and reported.

    Args:
        loop: "compiled" runs a compiled loop where one supports the policy, "auto" only for many
            requests. All loops give the same bytes.
        kind: "vllm" adds async scheduling and prefix caching, two defaults of vLLM.
        clients: number of requests in flight; each finished request is replaced at once. The
            arrivals of the timeline are then the times of sending. None: requests arrive by time.
        observers: called by the loop in plain Python only.

    Raises:
        ConfigError: there is no client.
        UnsupportedByEngine: the policy requires what the instance cannot do.
        InvalidDecision: the policy raised, or ranked with NaN.
        SchedulingError: requests evict each other without end, or a step is beyond the time tables.
        Interrupted: Ctrl-C, in the loop in plain Python.
    """
    instance.check(policy)
    wants = loop == "compiled" or (loop == "auto" and len(requests) >= _WORTH_COMPILING)
    if wants and kind == "plain" and clients is None and find_spec("numba") is not None:
        # Imported late: numba takes a second, and most runs do without it.
        from scheduler_adapters.simulator.compiled.run import run_compiled

        if (timeline := run_compiled(requests, policy, instance)) is not None:
            return timeline
    engine = Engine(policy, instance, vllm=kind == "vllm", observers=observers)
    closed_loop = None if clients is None else ClosedLoop(engine, requests, clients=clients)
    try:
        with uncollected():
            if closed_loop is None:
                engine.submit_all(requests)
            engine.advance(inf)
    except KeyboardInterrupt as error:
        raise Interrupted(_timeline(engine, requests, closed_loop)) from error
    return _timeline(engine, requests, closed_loop)


def _timeline(engine: Engine, requests: Requests, closed_loop: ClosedLoop | None) -> Timeline:
    return engine.timeline(requests if closed_loop is None else closed_loop.sent_requests())


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
