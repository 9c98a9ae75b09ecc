"""A simulated engine behind the driver interface: all that another engine has to bring."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_adapters.engines.engine_clock import ClockKind, EngineClock, WallClock
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.steps import Chunk, StepRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests


@dataclass
class Measured(LatencyModel):
    """Step times of another model, told to the observers."""

    latency: LatencyModel
    observers: Sequence[EngineObserver]

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        seconds = self.latency.step_s(num_decodes, decode_context, prefills)
        for observer in self.observers:
            observer.measured(StepRecord.of(num_decodes, decode_context, prefills, seconds))
        return seconds


class PlainEngine:
    """Serves in virtual time; a run has no tokens."""

    def __init__(self, policy: Policy, limits: Mapping[str, Any], latency: LatencyModel) -> None:
        self.policy, self.limits, self.latency = policy, limits, latency

    def clock(self, wanted: ClockKind | None) -> tuple[ClockKind, EngineClock]:
        return "wall", WallClock()

    def serve(
        self,
        requests: Requests,
        *,
        clock: EngineClock,
        seed: int,
        policy: Policy | None = None,
        observers: Sequence[EngineObserver] = (),
    ) -> Timeline:
        instance = Instance(latency=Measured(self.latency, observers), **self.limits)
        return simulate(requests, policy or self.policy, instance)
