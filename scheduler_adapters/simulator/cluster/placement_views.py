"""Views of a cluster for its placement, now or of the last snapshot, and the checked answers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from lengthwise.errors import InvalidDecision, LengthwiseError
from lengthwise.settings import NonNegative, NonNegativeFinite, settings
from scheduler_adapters.placement import InstanceId, Placement, Watch, fewest_requests, of_role
from scheduler_adapters.simulator.cluster.clock import ClusterClock
from scheduler_adapters.simulator.cluster.cluster_instance import ClusterInstance
from scheduler_adapters.simulator.cluster.instance_telemetry import count_in_transfer
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.views import InstanceView, RequestView, Role


@settings
class TelemetryAge:
    """Age of the views on which a placement decides."""

    period_s: NonNegativeFinite = 0.0
    """Time between snapshots. Views show the last snapshot and the router's own decisions since:
    requests placed, KV booked, roles. 0: views are always up to date."""
    max_age_s: NonNegative = inf
    """Age of the views above which the shortest queue decides, counted by the router: requests of
    the last snapshot and those placed since."""


class InstanceViews(Sequence[InstanceView]):
    """Living instances as they are now or, with snapshots, as of the last one and decisions since.

    Without snapshots only the instances that are read are advanced to now.

    Args:
        has_snapshots: show the last snapshot; the caller takes the first at 0 s.
        with_decodes: snapshots have the decodes of each instance.
    """

    def __init__(
        self, clock: ClusterClock, watch: Watch | None, *, has_snapshots: bool, with_decodes: bool
    ) -> None:
        self.clock, self.instances, self.watch = clock, clock.instances, watch
        self.has_snapshots, self.with_decodes = has_snapshots, with_decodes
        own_views = [instance.view for instance in self.instances]
        self.by_number = [replace(view) for view in own_views] if has_snapshots else own_views
        self.living = set(range(len(own_views)))
        self.shown = list(self.by_number)
        """Views of living instances, by number."""
        self.taken_s = 0.0

    @property
    def age_s(self) -> float:
        """Time since the instances were as they are shown."""
        return self.clock.now_s - self.taken_s if self.has_snapshots else 0.0

    def take_snapshot(self) -> None:
        self.taken_s = self.clock.now_s
        for instance in range(len(self.by_number)):
            self._take_snapshot_of(instance)
        self._show_living()

    def _take_snapshot_of(self, number: int) -> None:
        instance = self.instances[number]
        self._update(instance)
        counts = instance.counts
        decodes = tuple(instance.engine.decodes()) if self.with_decodes else ()
        self.by_number[number] = replace(
            instance.view,
            paced_until_s=inf if counts is None else counts.paced_until_s(for_later=True),
            decodes=lambda: decodes,
        )

    def set_living(self, instance: int, is_living: bool) -> None:
        """Leave out an instance that has failed, or show one that has recovered."""
        (self.living.add if is_living else self.living.discard)(instance)
        if is_living and self.has_snapshots:
            self._take_snapshot_of(instance)
        self._show_living()

    def _show_living(self) -> None:
        self.shown = [self.by_number[instance] for instance in sorted(self.living)]

    def set_role(self, instance: int, role: Role) -> None:
        self.instances[instance].view.role = self.by_number[instance].role = role

    def placed(self, request: RequestView, instance: int) -> None:
        """Add a placed request to the snapshot."""
        if self.has_snapshots:
            view, context = self.by_number[instance], request.context_tokens
            view.num_waiting += 1
            if request.generated_tokens == request.thinking_tokens:
                view.num_thinking += self._is_counted(context)
            view.waiting_prompt_tokens += request.prompt_tokens
            view.prefill_tokens += context
            view.prefill_squares += context**2

    def thinking_ended(self, instance: int, state: RequestState) -> None:
        """Count a request that begins to answer among the answers of the snapshot."""
        if self.has_snapshots:
            view = self.by_number[instance]
            counted = self._is_counted(state.view.prompt_tokens + state.reasoning_tokens)
            view.num_thinking = max(0, view.num_thinking - counted)
            view.num_fresh_answering += self.watch is not None

    def _is_counted(self, context_tokens: int) -> bool:
        """Return whether a request of that context counts among those that think."""
        return self.watch is not None and context_tokens <= self.watch.demote_above_tokens

    def book(self, number: int, state: RequestState, blocks: int) -> None:
        """Book a request in transfer with `blocks` of KV at its destination.

        The last snapshot still shows it when the booking was cancelled.
        """
        self.instances[number].book(state, blocks)
        if self.has_snapshots:
            count_in_transfer(self.by_number[number], state, blocks, self.watch)

    def _update(self, instance: ClusterInstance) -> None:
        """Bring the engine's own view of an instance up to date."""
        now_s = self.clock.now_s
        if instance.next_s < now_s:
            self.clock.advance(instance, now_s)
        if instance.is_outdated:
            instance.renew_view(now_s)

    def __len__(self) -> int:
        return len(self.shown)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        view = self.shown[index]
        if not self.has_snapshots:
            self._update(self.instances[view.instance_id])
        return view

    def __iter__(self) -> Iterator[InstanceView]:
        if not self.has_snapshots:
            for instance in self.instances:
                self._update(instance)
        return iter(self.shown)


class QueueLength(Placement):
    """Fewest requests among the instances of a role, or among all; decides on views too old."""

    name = "queue-length"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return fewest_requests(of_role("prefill", instances) or instances)

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId:
        here = [view for view in instances if view.instance_id == instance]
        if here and here[0].role != "prefill":
            return instance
        return fewest_requests(of_role("decode", instances) or instances)


_FALLBACK = QueueLength()


class PlacementCalls:
    """A placement with the views on which it decides; its answers are checked.

    Args:
        max_age_s: age of the views above which the shortest queue decides.
    """

    def __init__(self, placement: Placement, views: InstanceViews, max_age_s: float) -> None:
        self.placement, self.views, self.max_age_s = placement, views, max_age_s
        self.num_fallbacks = 0
        """Requests placed by the shortest queue."""

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return the answer of the placement, or of the shortest queue where views are too old.

        Raises:
            InvalidDecision: the placement raised.
        """
        decider = _FALLBACK if self.is_blind else self.placement
        try:
            return getattr(decider, method)(*arguments, self.views)
        except LengthwiseError:
            raise
        except Exception as error:
            raise InvalidDecision(
                f"placement {decider.name!r} failed in {method}(), at {self.views.clock.now_s} s: "
                f"{type(error).__name__}: {error}; correct it"
            ) from error

    @property
    def is_blind(self) -> bool:
        """True while the views are too old for the placement to decide."""
        return self.views.age_s > self.max_age_s

    def place(self, request: RequestView) -> InstanceId:
        """Return the living instance in which a waiting request is placed."""
        self.num_fallbacks += self.is_blind
        chosen = self.ask("place", request)
        self.check(chosen, request)
        self.views.placed(request, chosen)
        return int(chosen)

    def is_living(self, chosen: object) -> bool:
        """Return whether an answer is the number of a living instance."""
        return isinstance(chosen, int) and chosen in self.views.living

    def check(self, chosen: object, request: RequestView) -> None:
        """Raise `InvalidDecision` unless an answer is the number of a living instance."""
        if not self.is_living(chosen):
            raise InvalidDecision(
                f"placement {self.placement.name!r} sent request {request.request_id!r} to "
                f"instance {chosen!r}; name one of the views that it was given"
            )
