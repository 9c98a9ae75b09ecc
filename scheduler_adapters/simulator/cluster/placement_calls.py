"""Calls of a placement by a cluster: checked answers, and requests placed as answered."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lengthwise.errors import InvalidDecision, LengthwiseError
from scheduler_adapters.placement import InstanceId, Placement, fewest_requests, of_role
from scheduler_adapters.simulator.cluster.placement_views import InstanceViews
from scheduler_adapters.simulator.engine.simulated_request import Carried
from scheduler_adapters.views import InstanceView, Phase, RequestView


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
    """A placement with the views on which it decides, and the requests that no instance can take.

    Args:
        max_age_s: age of the views above which the shortest queue decides.
    """

    def __init__(self, placement: Placement, views: InstanceViews, max_age_s: float) -> None:
        self.placement, self.views, self.max_age_s = placement, views, max_age_s
        self.clock = views.clock
        self.num_fallbacks = 0
        """Requests placed by the shortest queue."""
        self.unplaced: deque[tuple[int, RequestView, Carried | None]] = deque()
        """Requests placed when an instance recovers: row, view, and progress if there is any."""

    @property
    def is_blind(self) -> bool:
        """True while the views are too old for the placement to decide."""
        return self.views.age_s > self.max_age_s

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
                f"placement {decider.name!r} failed in {method}(), at {self.clock.now_s} s: "
                f"{type(error).__name__}: {error}; correct it"
            ) from error

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

    def place(self, row: int, request: RequestView, carried: Carried | None) -> bool:
        """Place a request, or keep it until an instance recovers; return whether it is accepted.

        With `carried` it was in an instance that failed. A request is rejected if the memory of its
        instance can never hold it.
        """
        request.phase = Phase.WAITING
        now_s = self.clock.now_s
        is_late = request.arrival_s < now_s
        if is_late:
            request.last_token_s = now_s  # tells the placement the present time
        if not self.views.shown:
            self.unplaced.append((row, request, carried))
            return True
        self.num_fallbacks += self.is_blind
        chosen = self.ask("place", request)
        self.check(chosen, request)
        self.views.placed(request, chosen)
        if carried is None:
            late = Carried(available_s=now_s) if is_late else None
            return self.clock.submit(row, chosen, late)
        available_s = max(carried.available_s, now_s)
        carried = replace(carried, kv_tokens=0, held_blocks=0, available_s=available_s)
        self.submit_moved(row, chosen, carried)
        return True

    def submit_moved(self, row: int, instance: int, carried: Carried) -> None:
        """Submit a request with its progress; raise `InvalidDecision` where it can never fit."""
        if not self.clock.submit(row, instance, carried):
            raise InvalidDecision(
                f"placement {self.placement.name!r} moved request "
                f"{self.clock.requests.request_id.item(row)!r} to instance {instance}, whose "
                "memory can never hold it; choose a larger one"
            )
