"""N clients with one request each in flight: a finished request is replaced at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.cohort import Live
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests
from scoring_service.errors import ConfigError


class ClosedLoopEngine(Engine):
    """The engine, with arrivals that wait for others to finish."""

    def __init__(self, policy: Policy, instance: Instance, *, clients: int) -> None:
        super().__init__(policy, instance)
        if clients < 1:
            raise ConfigError(f"clients is {clients}; use 1 or more")
        self.clients = clients
        self.held: list[Live] = []
        """Who has not been sent yet, the next one last."""

    def run(self, requests: Requests) -> Timeline:
        return super().run(replace(requests, arrival_s=np.zeros(len(requests))))

    def timeline(self) -> Timeline:
        timeline = super().timeline()
        sent_s = np.array([live.view.arrival_s for live in self.lives])
        return replace(timeline, requests=replace(timeline.requests, arrival_s=sent_s))

    def _expect(self, requests: Requests) -> None:
        super()._expect(requests)
        self.held, self.arrivals = self.arrivals[: -self.clients], self.arrivals[-self.clients :]

    def _finish(self, live: Live) -> None:
        super()._finish(live)
        if self.held:
            sent = self.held.pop()
            sent.view.arrival_s = self.load.now_s
            self.arrivals.insert(0, sent)
            self._look_at_arrivals()


def simulate_closed_loop(
    requests: Requests, policy: Policy, instance: Instance, *, clients: int
) -> Timeline:
    """Serve `requests` in their order, `clients` at a time from 0 s on; no think time.

    The timeline's arrivals are the times at which they were sent; those of `requests` are ignored.

    Raises:
        ConfigError: there is no client.
        InvalidDecision, SchedulingError: as `simulate` does.
    """
    return ClosedLoopEngine(policy, instance, clients=clients).run(requests)
