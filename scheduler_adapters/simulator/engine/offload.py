"""KV blocks outside the device: in host memory, on the link, or brought from another instance."""

from math import inf

from scheduler_adapters.simulator.engine.ranked_requests import RankedRequests
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.engine.state import EngineState
from scheduler_adapters.simulator.host_link import Copies


class StoredBlocks:
    """Copies of KV blocks to the host and back.

    A request that is copied back holds a seat and its blocks, so it is among the residents; but it
    does not run, is not evicted, and to the policy it waits. What comes from another instance is
    there at the next step.
    """

    __slots__ = (
        "brought", "brought_blocks", "copies", "max_host_blocks", "next_landing_s",
        "prompt_tokens", "ranks", "state", "used_host_blocks",
    )  # fmt: skip

    def __init__(self, state: EngineState, ranks: RankedRequests) -> None:
        host = state.instance.host
        self.state = state
        self.ranks = ranks
        self.copies: Copies | None = None
        self.max_host_blocks: float = 0
        if host is not None:
            self.copies = Copies(host, block_tokens=state.instance.block_tokens)
            self.max_host_blocks = inf if host.max_blocks is None else host.max_blocks
        self.used_host_blocks = self.brought_blocks = self.prompt_tokens = 0
        """Kept in host memory, brought from other instances, and the prompts of both."""
        self.brought: list[RequestState] = []
        """Admitted with blocks from another instance since the last landing."""
        self.next_landing_s = inf

    def offload(self, live: RequestState, blocks: int) -> None:
        """Copy what a victim has computed to the host, where that has room."""
        if blocks and self.used_host_blocks + blocks <= self.max_host_blocks:
            live.stored_blocks = blocks
            self.used_host_blocks += blocks
            self.prompt_tokens += live.view.prompt_tokens
            self._copy(live)

    def bring(self, live: RequestState, blocks: int) -> None:
        """Note the blocks with which a request comes from another instance."""
        live.is_brought, live.stored_blocks = True, blocks
        self.brought_blocks += blocks
        self.prompt_tokens += live.view.prompt_tokens

    def reload(self, live: RequestState) -> None:
        """Copy the blocks of an admitted request back."""
        if live.is_brought:
            live.is_moving = True
            self.brought.append(live)
            self.next_landing_s = self.state.load.now_s
        else:
            self._copy(live)

    def _copy(self, live: RequestState) -> None:
        assert self.copies is not None
        live.is_moving = True
        self.copies.start(self.state.load.now_s, live.row, live.stored_blocks)
        self._look_ahead()

    def _look_ahead(self) -> None:
        if self.brought:
            self.next_landing_s = self.state.load.now_s
        else:
            self.next_landing_s = inf if self.copies is None else self.copies.next_landing_s

    def free(self, live: RequestState) -> None:
        """Give up the stored blocks of a request that is back on the device, or has left."""
        if live.stored_blocks:
            self.prompt_tokens -= live.view.prompt_tokens
        if live.is_brought:
            self.brought_blocks -= live.stored_blocks
        else:
            self.used_host_blocks -= live.stored_blocks
        live.stored_blocks = 0
        live.is_brought = False

    def land(self) -> None:
        """End the copies that have landed: on the host, or back, so that the request runs again."""
        state = self.state
        landed, self.brought = self.brought, []
        if self.copies is not None:
            landed += [state.lives[row] for row in self.copies.land(state.load.now_s)]
        back = []
        for live in landed:
            live.is_moving = False
            if not live.is_waiting and not live.is_gone:
                back.append(live)
        self._look_ahead()
        for live in back:
            self.free(live)
            state.num_returning -= 1
            state.num_waiting -= 1
            state.waiting_tokens -= live.view.prompt_tokens
            state.num_prefilling += live.prefill_left > 0
        state.count()
        for live in back:
            self.ranks.ask(live)
            self.ranks.place(live)
