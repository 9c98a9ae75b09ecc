"""Runs of the simulator with a progress line, as the commands make them."""

from __future__ import annotations

from scheduler_adapters.policy import Policy
from scheduler_adapters.progress import Progress
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.observers import LoadRecorder, ProgressLine
from scheduler_adapters.simulator.simulate import EngineKind, simulate
from scheduler_adapters.timeline.load_curve import LoadCurve
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests


def run_with_load(
    requests: Requests,
    policy: Policy,
    instance: Instance,
    progress: Progress,
    *,
    engine: EngineKind = "plain",
    clients: int | None = None,
) -> tuple[Timeline, LoadCurve]:
    """Serve `requests` step by step in plain Python, and record the load.

    Raises as `simulate` does.
    """
    load = LoadRecorder()
    timeline = simulate(
        requests,
        policy,
        instance,
        loop="python",
        kind=engine,
        clients=clients,
        observers=[load, *_progress_lines(progress, requests)],
    )
    return timeline, load.curve()


def run_requests(
    requests: Requests,
    policy: Policy,
    instance: Instance,
    progress: Progress,
    *,
    engine: EngineKind = "plain",
    clients: int | None = None,
) -> Timeline:
    """Serve `requests`; many of them in a compiled loop, which shows no progress.

    Raises as `simulate` does.
    """
    observers = _progress_lines(progress, requests)
    return simulate(requests, policy, instance, kind=engine, clients=clients, observers=observers)


def _progress_lines(progress: Progress, requests: Requests) -> list[EngineObserver]:
    return [ProgressLine(progress, len(requests))] if progress.is_shown else []
