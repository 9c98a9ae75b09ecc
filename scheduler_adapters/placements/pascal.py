"""PASCAL over instances: where a request reasons, and where it answers."""

from collections.abc import Sequence
from typing import Literal

from lengthwise.settings import Natural, checked
from scheduler_adapters.placement import InstanceId, Placement, Watch
from scheduler_adapters.views import InstanceView, RequestView

Migration = Literal["adaptive", "always", "never"]
Fresh = Literal["unpaced", "always"]


class PascalPlacement(Placement):
    """Least KV for a new request; fewest requests of the first queue for one that begins to answer.

    Instances in which all readers have tokens to read are preferred.

    Args:
        migration: adaptive: stay if only the present instance has enough memory; always: follow
            the choice (NonAdaptive); never: answer where it reasoned (NoMigration).
        fresh: when requests in the first quantum of their answer count beside those that reason
            (r + a): unpaced, if no instance has tokens for all readers, as in Algorithm 2; always.
        reserve_tokens: free tokens beside the context from which memory is enough.
        quantum_tokens, demote_above_tokens: those of the policy in the instances.
        pace_s: time in which a reader reads one token.

    Source: PASCAL, Algorithms 1 and 2 and the section on adaptive migration. Ours: waiting requests
    count with their prompts, as otherwise one instance would get a whole burst, and the 500 tokens.
    """

    name = "pascal"

    @checked
    def __init__(
        self,
        *,
        migration: Migration = "adaptive",
        fresh: Fresh = "unpaced",
        reserve_tokens: Natural = 500,
        quantum_tokens: int = 500,
        demote_above_tokens: int = 5000,
        pace_s: float = 0.1,
    ) -> None:
        self.migration = migration
        self.fresh = fresh
        self.reserve_tokens = reserve_tokens
        self.watch = Watch(
            quantum_tokens=quantum_tokens, demote_above_tokens=demote_above_tokens, pace_s=pace_s
        )

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        now_s = max(request.arrival_s, request.last_token_s or 0.0)
        paced = [view for view in instances if now_s < view.paced_until_s]
        return min(paced or instances, key=_kv).instance_id

    def at_phase_change(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId:
        if self.migration == "never":
            return instance
        now_s = request.last_token_s or 0.0
        paced = [view for view in instances if now_s < view.paced_until_s]
        counts_fresh = not paced or self.fresh == "always"

        def load(view: InstanceView) -> tuple[int, InstanceId]:
            # The request itself is counted among those that answer where it is.
            fresh = view.num_fresh_answering - (view.instance_id == instance)
            return view.num_thinking + (fresh if counts_fresh else 0), view.instance_id

        chosen = min(paced or instances, key=load)
        if self.migration == "adaptive" and not self._has_room(request, chosen, 0):
            here = next(view for view in instances if view.instance_id == instance)
            if self._has_room(request, here, here.blocks_of(request.context_tokens)):
                return instance
        return chosen.instance_id

    def _has_room(self, request: RequestView, view: InstanceView, own_blocks: int) -> bool:
        needed = view.blocks_of(request.context_tokens) + view.blocks_of(self.reserve_tokens)
        return view.free_blocks + own_blocks >= needed


def _kv(view: InstanceView) -> tuple[int, InstanceId]:
    return view.kv_blocks + view.blocks_of(view.unstored_prompt_tokens), view.instance_id
