"""One engine of a cluster: how far it has run, the requests it has received, and its view."""

from math import inf

from scheduler_adapters.placement import Watch
from scheduler_adapters.simulator.cluster.instance_telemetry import (
    PrefillQueue,
    WatchedCounts,
    count_in_transfer,
)
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState


class ClusterInstance:
    """An engine with its place in virtual time and the view that placements read."""

    def __init__(self, engine: Engine, watch: Watch | None, *, watches_prefills: bool) -> None:
        self.engine, self.view, self.watch = engine, engine.own_view, watch
        self.number = self.view.instance_id
        self.next_s = -inf
        """Start of the next step; -inf if it is not known."""
        self.quiet_s = -inf
        """Time up to which no phase ends; -inf if it is not known."""
        self.is_outdated = True
        """True if the view is to be renewed."""
        self.rows: list[int] = []
        """Rows of the requests that it has received, by row of the engine."""
        self.booked: dict[RequestState, int] = {}
        """Requests in transfer to the instance, and the blocks of their KV."""
        self.counts = None if watch is None else WatchedCounts(engine, watch)
        self.prefills = PrefillQueue(engine) if watches_prefills else None

    def advance(self, until_s: float) -> None:
        """Run the steps that start before `until_s`."""
        self.next_s = self.engine.advance(until_s)
        self.is_outdated = True

    def submit(self, row: int, request: RequestState, carried: RequestState | None) -> bool:
        """Submit a request; return whether the memory can ever hold it."""
        is_held = self.engine.submit(request, carried=carried)
        self.rows.append(row)
        if self.prefills is not None:
            self.prefills.submitted(request)
        if self.counts is not None:
            self.counts.submitted(request)
        return is_held

    def book(self, request: RequestState, blocks: int) -> None:
        """Book a request in transfer with `blocks` of KV."""
        self.booked[request] = blocks
        self.is_outdated = True

    def cancel_booking(self, request: RequestState) -> None:
        del self.booked[request]
        self.is_outdated = True

    def renew_view(self, now_s: float = inf) -> None:
        """Bring the view up to date; by default the step under way counts as done."""
        view, counts, prefills = self.engine.view(), self.counts, self.prefills
        view.booked_blocks = 0
        if counts is not None:
            view.num_thinking = counts.thinking.count()
            view.num_fresh_answering = counts.fresh.count()
            view.paced_until_s = counts.paced_until_s()
        for state, blocks in self.booked.items():
            count_in_transfer(view, state, blocks, self.watch)
        self.is_outdated = False
        if prefills is not None:
            view.prefill_tokens, view.prefill_squares = prefills.sums(now_s)
            self.is_outdated = bool(prefills.chunks(now_s))  # the end of this step changes them
