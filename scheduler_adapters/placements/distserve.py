"""DistServe: prompts are prefilled in some instances, and decoded in others that pull them."""

from collections.abc import Sequence
from typing import Annotated

from lengthwise.settings import Range, checked
from scheduler_adapters.placement import InstanceId, Placement, fewest_requests, of_role
from scheduler_adapters.views import InstanceView, RequestView


class DistServe(Placement):
    """The shortest queue of prefill instances; then that of decode instances with room.

    A decode instance pulls a prefilled request if few blocks are needed by waiting requests and
    enough are free. Otherwise the request stays where it was prefilled and keeps its blocks.

    Args:
        max_waiting_fraction: share of a decode instance's KV memory for waiting requests.

    Source: DistServe, sections on placement and on pulling KV.
    """

    name = "distserve"

    @checked
    def __init__(
        self, *, max_waiting_fraction: Annotated[float, Range(above=0, most=1)] = 0.05
    ) -> None:
        self.max_waiting_fraction = max_waiting_fraction

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return fewest_requests(of_role("prefill", instances) or instances)

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        pulls = [view for view in of_role("decode", instances) if self._pulls(request, view)]
        return fewest_requests(pulls) if pulls else None

    def _pulls(self, request: RequestView, view: InstanceView) -> bool:
        waiting_blocks = view.booked_blocks + view.waiting_prompt_tokens / view.block_tokens
        is_short = waiting_blocks < self.max_waiting_fraction * view.total_blocks
        return is_short and view.free_blocks >= view.blocks_of(request.context_tokens)
