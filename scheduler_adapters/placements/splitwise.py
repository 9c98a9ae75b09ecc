"""Splitwise: prompt and token instances, and a mixed pool for the overflow of either."""

from collections import Counter
from collections.abc import Sequence

from scheduler_adapters.placement import InstanceId, Placement, SetRole
from scheduler_adapters.views import InstanceView, RequestView, Role, require_at_least


class Splitwise(Placement):
    """The prompt instance with the fewest pending tokens, the token instance with the least KV.

    Both are chosen at arrival. A mixed instance is the second choice: if the prompt instances have
    too many pending tokens, or if no token instance can hold the whole request. As the third choice
    an instance of the other pool becomes mixed, until it is empty. First roles are the home pools.

    Args:
        max_pending_tokens: pending tokens up to which an instance accepts a further prompt.
        output_tokens: expected output of a request without a prediction.

    Source: Splitwise, cluster scheduling, as in its simulator. There lengths are known, and a
    request reserves all the memory it needs. Here used, booked and assigned blocks count, and the
    expected need of the newest request. A request that ends with its first token keeps its assigned
    blocks until its prompt instance is empty.
    """

    name = "splitwise"
    watches_prefills = True
    hands_over_from = ("prefill", "decode", "both")

    def __init__(self, *, max_pending_tokens: int = 8192, output_tokens: int = 256) -> None:
        require_at_least(1, max_pending_tokens=max_pending_tokens, output_tokens=output_tokens)
        self.max_pending_tokens = max_pending_tokens
        self.output_tokens = output_tokens
        self.home: dict[InstanceId, Role] = {}
        self.mixed: set[InstanceId] = set()
        """Instances outside their home pool."""
        self.assigned: dict[str, tuple[InstanceId, InstanceId, int]] = {}
        """Prompt instance, token instance and needed blocks of each request not handed over yet."""
        self.assigned_blocks: Counter[InstanceId] = Counter()

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        views = self._views(instances)
        prompt = self._prompt_instance(request, views)
        token = self._token_instance(request, views)
        if prompt is None or token is None:
            prompt = token = min(views, key=_pending)
        self._forget(request.request_id)  # of an instance that failed
        blocks = self._blocks(request, token)
        self._assign(request.request_id, prompt.instance_id, token.instance_id, blocks)
        return prompt.instance_id

    def _prompt_instance(
        self, request: RequestView, views: Sequence[InstanceView]
    ) -> InstanceView | None:
        """Return an instance that accepts the prompt; else a token instance becomes mixed."""
        for pool in (self._pool("prefill", views), self._pool("both", views)):
            if (view := min(pool, key=_pending, default=None)) is not None:
                tokens = view.prefill_tokens + request.prompt_tokens
                if not view.prefill_tokens or tokens <= self.max_pending_tokens:
                    return view
        view = min(self._pool("decode", views), key=_pending, default=None)
        if view is not None:
            self.mixed.add(view.instance_id)
        return view

    def _token_instance(
        self, request: RequestView, views: Sequence[InstanceView]
    ) -> InstanceView | None:
        """Return an instance with room; else a prompt instance becomes mixed."""
        if (view := self._holding(request, views)) is None:
            view = max(self._pool("prefill", views), key=self._free_blocks, default=None)
            if view is not None:
                self.mixed.add(view.instance_id)
        return view

    def _holding(self, request: RequestView, views: Sequence[InstanceView]) -> InstanceView | None:
        for pool in (self._pool("decode", views), self._pool("both", views)):
            fits = [v for v in pool if self._free_blocks(v) >= self._blocks(request, v)]
            if fits:
                return max(fits, key=self._free_blocks)
        return None

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        """The token instance; if it is full by now, another one with room for the request."""
        views = self._views(instances)
        by_number = {view.instance_id: view for view in views}
        hands_over = instance in by_number and by_number[instance].role == "prefill"
        assigned = self._forget(request.request_id)
        # Unassigned requests lost their KV while decoding, or were placed by the shortest queue.
        if not hands_over if assigned is None else assigned[1] == instance:
            return instance
        chosen = None if assigned is None else by_number.get(assigned[1])
        if chosen is None or (assigned and self._free_blocks(chosen) < assigned[2]):
            chosen = self._holding(request, views)
        if chosen is None and hands_over:
            if assigned is not None:
                self._assign(request.request_id, *assigned)
            return None
        return instance if chosen is None else chosen.instance_id

    def _views(self, instances: Sequence[InstanceView]) -> list[InstanceView]:
        """Return the instances; the first role of each is its home pool."""
        views = list(instances)
        for view in views:
            self.home.setdefault(view.instance_id, view.role)
        return views

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> list[SetRole]:
        """Set the role of mixed instances; an empty one returns to its home pool."""
        changes = []
        for view in self._views(instances):
            number = view.instance_id
            is_empty = not (view.num_requests or view.used_blocks or view.booked_blocks)
            if is_empty:  # requests still assigned here have ended with their first token
                for request_id in [r for r, own in self.assigned.items() if own[0] == number]:
                    self._forget(request_id)
            if is_empty and not self.assigned_blocks[number]:
                self.mixed.discard(number)
            if (role := self._role(number)) != view.role:
                changes.append(SetRole(instance=number, role=role))
        return changes

    def _pool(self, role: Role, views: Sequence[InstanceView]) -> list[InstanceView]:
        return [view for view in views if self._role(view.instance_id) == role]

    def _role(self, number: InstanceId) -> Role:
        return "both" if number in self.mixed else self.home[number]

    def _blocks(self, request: RequestView, view: InstanceView) -> int:
        return view.blocks_of(request.prompt_tokens + request.expected_tokens(self.output_tokens))

    def _free_blocks(self, view: InstanceView) -> int:
        return view.unclaimed_blocks - self.assigned_blocks[view.instance_id]

    def _assign(self, request_id: str, prompt: InstanceId, token: InstanceId, blocks: int) -> None:
        self.assigned[request_id] = prompt, token, blocks
        self.assigned_blocks[token] += blocks

    def _forget(self, request_id: str) -> tuple[InstanceId, InstanceId, int] | None:
        if (found := self.assigned.pop(request_id, None)) is not None:
            self.assigned_blocks[found[1]] -= found[2]
        return found


def _pending(view: InstanceView) -> tuple[int, InstanceId]:
    return view.prefill_tokens, view.instance_id
