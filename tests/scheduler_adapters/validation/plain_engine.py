"""An engine in plain Python behind the driver interface: all that another engine has to bring."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_adapters.engines.driver import EngineDriver, EngineLimits, ServedRun, TokenTimes
from scheduler_adapters.engines.engine_clock import ClockKind, EngineClock, WallClock
from scheduler_adapters.planner.ranking import RankedQueue, RankedRequest, Ranker
from scheduler_adapters.planner.request_annotations import annotations_of
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.workload.requests import Requests


class VirtualClock(WallClock):
    """Time that moves with the engine's steps, in seconds."""

    now_s = 0.0

    def restart(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait_until(self, instant_s: float) -> None:
        self.now_s = max(self.now_s, instant_s)


@dataclass(eq=False)
class Served:
    """A request inside the engine."""

    lengthwise: RankedRequest
    output_tokens: int
    computed: int = 0
    emitted: int = 0

    @property
    def left(self) -> int:
        return self.lengthwise.view.prompt_tokens + self.emitted - self.computed


class PlainEngine(EngineDriver):
    """Memory for all; decodes first, then prefills in progress, then the queue."""

    def __init__(self, policy: Policy, limits: EngineLimits, latency: LatencyModel) -> None:
        self._policy, self._limits, self._latency = policy, limits, latency

    @property
    def limits(self) -> EngineLimits:
        return self._limits

    def clock(self, wanted: ClockKind | None) -> tuple[ClockKind, EngineClock]:
        return "wall", VirtualClock()

    def serve(
        self,
        requests: Requests,
        *,
        clock: EngineClock,
        seed: int,
        policy: Policy | None = None,
        observers: Sequence[EngineObserver] = (),
    ) -> ServedRun:
        assert isinstance(clock, VirtualClock)
        clock.restart()
        times = TokenTimes()
        ranker = Ranker(policy or self._policy, clock, [times, *observers])
        queue: RankedQueue[Served] = RankedQueue()
        running: list[Served] = []
        added = 0
        while added < len(requests) or running or len(queue):
            if not (running or len(queue)):
                clock.wait_until(float(requests.arrival_s[added]))
            while added < len(requests) and requests.arrival_s[added] <= clock():
                tracked = ranker.track(
                    str(requests.request_id[added]),
                    age_s=clock() - float(requests.arrival_s[added]),
                    prompt_tokens=int(requests.prompt_tokens[added]),
                    carried=annotations_of(requests, added),
                )
                served = Served(tracked, int(requests.output_tokens[added]))
                queue.add(served)
                added += 1
            ranker.begin_step(queue)
            self._step(ranker, queue, running, clock)
        return ServedRun(timeline=times.timeline(requests), token_ids=[])

    def _step(
        self, ranker: Ranker, queue: RankedQueue[Served], running: list[Served], clock: VirtualClock
    ) -> None:
        ran: dict[Served, int] = {}
        budget, started_s = self._limits.max_tokens, clock()
        for served in sorted(running, key=lambda served: served.emitted == 0):
            if size := min(served.left, budget):
                ran[served] = size
                budget -= size
        while budget and len(queue) and len(running) < self._limits.max_num_seqs:
            served = queue.pop_first()
            running.append(served)
            ran[served] = min(served.left, budget)
            budget -= ran[served]
            for observer in ranker.observers:
                observer.admitted(served.lengthwise.view, started_s)
        decodes = [served for served in ran if served.emitted]
        prefills = [(served.computed, size) for served, size in ran.items() if not served.emitted]
        context = sum(served.computed + 1 for served in decodes)
        seconds = self._latency.step_s(len(decodes), context, prefills)
        clock.now_s += seconds
        ranker.end_step(started_s)
        for served, size in ran.items():
            served.computed += size
            if served.left:
                continue
            served.emitted += 1
            for observer in ranker.observers:
                observer.emitted(served.lengthwise.view, 1, clock())
            if served.emitted == served.output_tokens:
                running.remove(served)
                for observer in ranker.observers:
                    observer.finished(served.lengthwise.view, clock())
        for observer in ranker.observers:
            observer.stepped(clock())
            observer.measured(StepRecord.of(len(decodes), context, prefills, seconds))
