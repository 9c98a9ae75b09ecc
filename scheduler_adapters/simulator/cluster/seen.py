"""The instances of a cluster as a placement sees them: as they are, or as they were a while ago."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, overload

from lengthwise.errors import require
from scheduler_adapters.placement import InstanceId, Placement, fewest_requests
from scheduler_adapters.simulator.cluster.telemetry import answers, generated_tokens
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.views import InstanceView, RequestView, Role

if TYPE_CHECKING:
    from scheduler_adapters.simulator.cluster.cluster import Cluster

SNAPSHOT = 4
"""Kind of event; see `cluster.py` for the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryAge:
    """How old the views of instances are on which a placement decides."""

    period_s: float = 0.0
    """Views show instances as they were at the last multiple of this time, and what the router has
    decided since: requests placed, KV booked, roles. 0: as they are."""
    max_age_s: float = inf
    """Beyond this age of the views the shortest queue decides, by the router's own count: requests
    that were there, and those placed since."""

    def __post_init__(self) -> None:
        require("period_s", self.period_s, 0 <= self.period_s < inf, "seconds >= 0")
        require("max_age_s", self.max_age_s, self.max_age_s >= 0, "seconds >= 0")


class InstanceViews(Sequence[InstanceView]):
    """The instances as they are now. Those that are looked at are advanced to now, no others:
    an instance that nothing touches skips ahead as if it were alone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.outdated = set(range(len(cluster.engines)))
        self.by_number = [engine.own_view for engine in cluster.engines]
        self.shown = list(self.by_number)
        """Those of living instances, by number."""

    def hide(self, instance: int) -> None:
        """Leave out an instance that has died."""
        self.shown = [view for view in self.shown if view.instance_id != instance]

    def show(self, instance: int) -> None:
        """Show an instance that has come."""
        insort(self.shown, self.by_number[instance], key=attrgetter("instance_id"))

    @property
    def age_s(self) -> float:
        """How long ago the instances were as they are shown."""
        return 0.0

    def placed(self, request: RequestView, instance: int) -> None:
        """Note a request that was placed."""

    def booked(self, instance: int, live: RequestState, blocks: int) -> None:
        """Note a request that was sent to an instance, with its KV."""

    def thinking_ended(self, instance: int, live: RequestState) -> None:
        """Note a request that begins to answer where it is."""

    def _look(self, instance: int) -> None:
        cluster = self.cluster
        if cluster.next_s[instance] < cluster.now_s:
            cluster.advance(instance, cluster.now_s)
        if instance in self.outdated:
            telemetry = cluster.telemetry[instance]
            telemetry.view(cluster.now_s)
            if not telemetry.is_changing(cluster.now_s):
                self.outdated.discard(instance)

    def __len__(self) -> int:
        return len(self.shown)

    @overload
    def __getitem__(self, index: int) -> InstanceView: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[InstanceView]: ...
    def __getitem__(self, index: int | slice) -> InstanceView | Sequence[InstanceView]:
        if isinstance(index, slice):
            return list(self)[index]
        view = self.shown[index]
        self._look(view.instance_id)
        return view

    def __iter__(self) -> Iterator[InstanceView]:
        now_s, next_s = self.cluster.now_s, self.cluster.next_s
        late = {i for i, start_s in enumerate(next_s) if start_s < now_s}
        for instance in sorted(late | self.outdated):
            self._look(instance)
        return iter(self.shown)


class Snapshots(InstanceViews):
    """The instances as they were at the last snapshot, with what was decided since."""

    def __init__(self, cluster: Cluster, period_s: float, *, with_decodes: bool) -> None:
        super().__init__(cluster)
        self.period_s = period_s
        self.with_decodes = with_decodes
        self.taken_s = 0.0
        self.by_number = [replace(view) for view in self.by_number]
        self.shown = list(self.by_number)
        self._expect(0)

    def _expect(self, number: int) -> None:
        action = partial(self._take, number)
        self.cluster.push(number * self.period_s, SNAPSHOT, number, 0, action)

    def _take(self, number: int) -> None:
        self.taken_s = self.cluster.now_s
        for instance in range(len(self.by_number)):
            self._renew(instance)
        self.shown = [self.by_number[view.instance_id] for view in self.shown]
        self.cluster.moves.hand_over_parked()
        if self.cluster.is_pending():
            self._expect(number + 1)

    def _renew(self, instance: int) -> None:
        """Take the view of an instance as it is now."""
        self._look(instance)
        engine = self.cluster.engines[instance]
        kept = tuple(engine.decodes()) if self.with_decodes else ()
        self.by_number[instance] = replace(
            engine.own_view,
            paced_until_s=self.cluster.telemetry[instance].paced_until_s(),
            decodes=lambda: kept,
        )

    def show(self, instance: int) -> None:
        self._renew(instance)
        super().show(instance)

    @property
    def age_s(self) -> float:
        return self.cluster.now_s - self.taken_s

    def placed(self, request: RequestView, instance: int) -> None:
        view, context = self.by_number[instance], request.context_tokens
        view.num_waiting += 1
        if request.generated_tokens == request.thinking_tokens:
            view.num_thinking += self._counts(context)
        view.waiting_prompt_tokens += request.prompt_tokens
        view.prefill_tokens += context
        view.prefill_squares += context**2

    def booked(self, instance: int, live: RequestState, blocks: int) -> None:
        view, watch = self.by_number[instance], self.cluster.placement.watch
        view.num_waiting += 1
        view.booked_blocks += blocks
        generated = generated_tokens(live)
        if not answers(live):
            view.num_thinking += self._counts(live.view.prompt_tokens + generated)
        elif watch is not None:
            view.num_fresh_answering += generated < live.reasoning_tokens + watch.quantum_tokens

    def thinking_ended(self, instance: int, live: RequestState) -> None:
        view = self.by_number[instance]
        counted = self._counts(live.view.prompt_tokens + live.reasoning_tokens)
        view.num_thinking = max(0, view.num_thinking - counted)
        view.num_fresh_answering += self.cluster.placement.watch is not None

    def _counts(self, context_tokens: int) -> bool:
        """Return whether a request of that context counts among those that think."""
        watch = self.cluster.placement.watch
        return watch is not None and context_tokens <= watch.demote_above_tokens

    def __getitem__(self, index: int | slice) -> InstanceView | Sequence[InstanceView]:  # type: ignore[override]
        return self.shown[index]

    def __iter__(self) -> Iterator[InstanceView]:
        return iter(self.shown)


class QueueLength(Placement):
    """Decides where views are too old: the fewest requests."""

    name = "queue-length"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return _shortest("prefill", instances)

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId:
        here = next((view for view in instances if view.instance_id == instance), None)
        if here is not None and here.role != "prefill":
            return instance
        return _shortest("decode", instances)


def _shortest(role: Role, instances: Iterable[InstanceView]) -> InstanceId:
    """Return the instance with the fewest requests of those that have a role, or of all."""
    views = list(instances)
    serving = [view for view in views if view.role in (role, "both")] or views
    return fewest_requests(serving)
