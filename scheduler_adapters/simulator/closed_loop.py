"""N clients with one request each in flight: a finished request is replaced at once."""

from dataclasses import replace

import numpy as np

from lengthwise.errors import at_least
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.simulated_request import simulated_requests
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import Requests


class ClosedLoop(EngineObserver):
    """Submits `clients` of the requests at 0 s, and the next whenever one has finished.

    Requests are sent in their order, without think time. Requests that the instance rejects are
    left out.
    """

    def __init__(self, engine: Engine, requests: Requests, *, clients: int) -> None:
        at_least("clients", clients, 1)
        self.engine = engine
        self.requests = requests
        self.sent_s = np.zeros(len(requests))
        """Time at which each request was sent; 0 before that."""
        self._unsent = enumerate(simulated_requests(requests))
        engine.observe(self)
        for _ in range(clients):
            self._send(0.0)

    def finished(self, request: RequestView, now_s: float) -> None:
        self._send(now_s)

    def _send(self, now_s: float) -> None:
        for row, request in self._unsent:
            if self.engine.submit(request._replace(arrival_s=now_s)):
                self.sent_s[row] = now_s
                return

    def sent_requests(self) -> Requests:
        """Return the requests with the times at which they were sent as arrivals."""
        return replace(self.requests, arrival_s=self.sent_s)
