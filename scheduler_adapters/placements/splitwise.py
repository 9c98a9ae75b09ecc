"""Splitwise: prompt and token instances, and a mixed pool for the overflow of either."""

from collections.abc import Sequence

from lengthwise.settings import Count, checked
from scheduler_adapters.placement import InstanceId, Placement, SetRole, of_role, with_room
from scheduler_adapters.views import InstanceView, RequestView, Role


class Splitwise(Placement):
    """The prompt instance with the fewest pending tokens, the token instance with the least KV.

    A mixed instance is the second choice: if the prompt instances have too many pending tokens, or
    if no token instance has room for the context. At ticks an instance of the other pool becomes
    mixed where that is not enough, until it is empty. First roles are the home pools.

    Args:
        max_pending_tokens: pending tokens up to which an instance accepts a further prompt.
        is_static: only instances that are mixed from the start are, whatever overflows.

    Source: Splitwise, cluster scheduling. In its simulator lengths are known and the pools change
    at arrivals. Here no length is known, and the pools change at ticks.
    """

    name = "splitwise"
    watches_prefills = True
    hands_over_from = ("prefill", "both")

    @checked
    def __init__(self, *, max_pending_tokens: Count = 8192, is_static: bool = False) -> None:
        self.max_pending_tokens, self.is_static = max_pending_tokens, is_static
        self.home: dict[InstanceId, Role] = {}

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        for role in ("prefill", "both"):
            pool = [view for view in instances if view.role == role]
            view = min(pool, key=_pending, default=None)
            if view is not None and self._accepts(view, request.prompt_tokens):
                return view.instance_id
        return min(of_role("prefill", instances) or instances, key=_pending).instance_id

    def _accepts(self, view: InstanceView, tokens: int) -> bool:
        pending = view.prefill_tokens
        return not pending or pending + tokens <= self.max_pending_tokens

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        """The token instance with the most free memory, then the mixed instance with the most."""
        for role in ("decode", "both"):
            fitting = with_room(request, (view for view in instances if view.role == role))
            if fitting:
                return max(fitting, key=lambda view: view.unclaimed_blocks).instance_id
        return None

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> list[SetRole]:
        """Return an empty mixed instance to its home; mix one for each pool that overflows."""
        views, changes = list(instances), []
        for view in views:
            home = self.home.setdefault(view.instance_id, view.role)
            is_empty = not (view.num_requests or view.used_blocks or view.booked_blocks)
            if view.role != home and is_empty:
                changes.append(SetRole(instance=view.instance_id, role=home))
        overflowing = {
            "decode": not any(self._accepts(view, 1) for view in of_role("prefill", views)),
            "prefill": any(view.prefilled_blocks for view in views),
        }
        for role, overflows in overflowing.items():
            mixes = overflows and not self.is_static
            pool = [view for view in views if view.role == role and mixes]
            if (helper := min(pool, key=_pending, default=None)) is not None:
                changes.append(SetRole(instance=helper.instance_id, role="both"))
        return changes


def _pending(view: InstanceView) -> tuple[int, InstanceId]:
    return view.prefill_tokens, view.instance_id
