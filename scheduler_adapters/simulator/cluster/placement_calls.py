"""Calls of a placement by a cluster: checked answers, and the shortest queue instead."""

from collections.abc import Sequence
from typing import Any

from lengthwise.errors import InvalidDecision, LengthwiseError
from scheduler_adapters.placement import InstanceId, Placement, fewest_requests, of_role
from scheduler_adapters.simulator.cluster.placement_views import InstanceViews
from scheduler_adapters.views import InstanceView, RequestView


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
