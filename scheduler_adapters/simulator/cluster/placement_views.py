"""The instances of a cluster as a placement sees them: as they are, or as of the last snapshot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from lengthwise.errors import require
from scheduler_adapters.placement import Watch
from scheduler_adapters.simulator.cluster.clock import ClusterClock
from scheduler_adapters.simulator.cluster.instance_telemetry import phase_counts
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.views import InstanceView, RequestView, Role


@dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryAge:
    """Age of the views on which a placement decides."""

    period_s: float = 0.0
    """Time between snapshots. Views show the last snapshot and the router's own decisions since:
    requests placed, KV booked, roles. 0: views are always up to date."""
    max_age_s: float = inf
    """Age of the views above which the shortest queue decides, counted by the router: requests of
    the last snapshot and those placed since."""

    def __post_init__(self) -> None:
        require("period_s", self.period_s, 0 <= self.period_s < inf, "seconds >= 0")
        require("max_age_s", self.max_age_s, self.max_age_s >= 0, "seconds >= 0")


class InstanceViews(Sequence[InstanceView]):
    """Living instances as they are now.

    Only the instances that are read are advanced to now; the others skip ahead as if alone.
    """

    def __init__(self, clock: ClusterClock) -> None:
        self.clock = clock
        self.by_number = [engine.own_view for engine in clock.engines]
        self.living = set(range(len(self.by_number)))
        self.shown = list(self.by_number)
        """Views of living instances, by number."""

    def set_living(self, instance: int, is_living: bool) -> None:
        """Leave out an instance that has failed, or show one that has recovered."""
        (self.living.add if is_living else self.living.discard)(instance)
        self._show_living()

    def _show_living(self) -> None:
        self.shown = [self.by_number[instance] for instance in sorted(self.living)]

    def set_role(self, instance: int, role: Role) -> None:
        """Change the role of an instance."""
        self.clock.engines[instance].own_view.role = self.by_number[instance].role = role

    @property
    def age_s(self) -> float:
        """Time since the instances were as they are shown."""
        return 0.0

    def placed(self, request: RequestView, instance: int) -> None:
        """Note a request that was placed."""

    def book(self, instance: int, state: RequestState, blocks: int, *, sign: int = 1) -> None:
        """Book a request in transfer at its destination; `sign` -1 cancels the booking."""
        self.clock.telemetry[instance].book(state, blocks, sign=sign)
        self.clock.outdated.add(instance)

    def thinking_ended(self, instance: int, state: RequestState) -> None:
        """Note a request that begins to answer in its instance."""

    def _refresh(self, instance: int) -> None:
        clock, telemetry = self.clock, self.clock.telemetry[instance]
        if clock.next_s[instance] < clock.now_s:
            clock.advance(instance, clock.now_s)
        if instance in clock.outdated:
            telemetry.view(clock.now_s)
            if not telemetry.is_changing(clock.now_s):
                clock.outdated.discard(instance)

    def __len__(self) -> int:
        return len(self.shown)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        view = self.shown[index]
        self._refresh(view.instance_id)
        return view

    def __iter__(self) -> Iterator[InstanceView]:
        now_s = self.clock.now_s
        late = {i for i, start_s in enumerate(self.clock.next_s) if start_s < now_s}
        for instance in sorted(late | self.clock.outdated):
            self._refresh(instance)
        return iter(self.shown)


class Snapshots(InstanceViews):
    """Living instances as of the last snapshot, and the decisions made since."""

    def __init__(self, clock: ClusterClock, watch: Watch | None, *, with_decodes: bool) -> None:
        super().__init__(clock)
        self.watch = watch
        self.with_decodes = with_decodes
        self.taken_s = 0.0
        self.by_number = [replace(view) for view in self.by_number]
        self.shown = list(self.by_number)

    def take(self) -> None:
        """Take a snapshot of all instances."""
        self.taken_s = self.clock.now_s
        for instance in range(len(self.by_number)):
            self._renew(instance)
        self._show_living()

    def _refresh(self, instance: int) -> None:
        """Leave a view as it is between snapshots."""

    def _renew(self, instance: int) -> None:
        super()._refresh(instance)
        engine = self.clock.engines[instance]
        decodes = tuple(engine.decodes()) if self.with_decodes else ()
        self.by_number[instance] = replace(
            engine.own_view,
            paced_until_s=self.clock.telemetry[instance].paced_until_s(for_later=True),
            decodes=lambda: decodes,
        )

    def set_living(self, instance: int, is_living: bool) -> None:
        if is_living:
            self._renew(instance)
        super().set_living(instance, is_living)

    @property
    def age_s(self) -> float:
        return self.clock.now_s - self.taken_s

    def placed(self, request: RequestView, instance: int) -> None:
        view, context = self.by_number[instance], request.context_tokens
        view.num_waiting += 1
        if request.generated_tokens == request.thinking_tokens:
            view.num_thinking += self._counts(context)
        view.waiting_prompt_tokens += request.prompt_tokens
        view.prefill_tokens += context
        view.prefill_squares += context**2

    def book(self, instance: int, state: RequestState, blocks: int, *, sign: int = 1) -> None:
        super().book(instance, state, blocks, sign=sign)
        if sign > 0:
            view, (thinking, fresh) = self.by_number[instance], phase_counts(state, self.watch)
            view.num_waiting += 1
            view.booked_blocks += blocks
            view.num_thinking += thinking
            view.num_fresh_answering += fresh

    def thinking_ended(self, instance: int, state: RequestState) -> None:
        view = self.by_number[instance]
        counted = self._counts(state.view.prompt_tokens + state.reasoning_tokens)
        view.num_thinking = max(0, view.num_thinking - counted)
        view.num_fresh_answering += self.watch is not None

    def _counts(self, context_tokens: int) -> bool:
        """Return whether a request of that context counts among those that think."""
        return self.watch is not None and context_tokens <= self.watch.demote_above_tokens
