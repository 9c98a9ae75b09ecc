"""KV blocks outside the device: in host memory, on the link, or of another instance."""

from math import inf

from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import HostCopies
from scheduler_adapters.views import LoadView


class StoredBlocks:
    """Copies of KV blocks to the host and back.

    A request that is copied back holds a seat and its blocks, so it is among the residents. It
    does not run, is not evicted, and counts as waiting for the policy. Blocks of another instance
    are on the device at the next step.
    """

    def __init__(self, instance: Instance, load: LoadView) -> None:
        host = instance.host
        self.load = load
        self.copies = None if host is None else HostCopies(host, block_tokens=instance.block_tokens)
        self.copying: dict[int, RequestState] = {}
        """Requests by number of their copy under way."""
        self.used_host_blocks = self.brought_blocks = self.prompt_tokens = 0
        """Blocks in host memory, blocks of other instances, and prompt tokens of both."""
        self.brought: list[RequestState] = []
        """Requests admitted with blocks of another instance since the last landing."""
        self.next_landing_s = inf

    def offload(self, request: RequestState, blocks: int) -> None:
        """Copy the computed blocks of an evicted request to the host, if there is one."""
        if blocks and self.copies is not None:
            request.stored_blocks = blocks
            self.used_host_blocks += blocks
            self.prompt_tokens += request.view.prompt_tokens
            self._copy(request)

    def bring(self, request: RequestState, blocks: int) -> None:
        """Note the blocks with which a request arrives from another instance."""
        request.is_brought, request.stored_blocks = True, blocks
        self.brought_blocks += blocks
        self.prompt_tokens += request.view.prompt_tokens

    def reload(self, request: RequestState) -> None:
        """Copy the blocks of an admitted request back."""
        if request.is_brought:
            request.is_moving = True
            self.brought.append(request)
            self._look_ahead()
        else:
            self._copy(request)

    def _copy(self, request: RequestState) -> None:
        assert self.copies is not None
        request.is_moving = True
        number = self.copies.start(self.load.now_s, request.stored_blocks)
        self.copying[number] = request
        self._look_ahead()

    def _look_ahead(self) -> None:
        copied_s = inf if self.copies is None else self.copies.next_landing_s
        self.next_landing_s = self.load.now_s if self.brought else copied_s

    def free(self, request: RequestState) -> None:
        """Free the stored blocks of a request that is back on the device, or has left."""
        if request.stored_blocks:
            self.prompt_tokens -= request.view.prompt_tokens
        if request.is_brought:
            self.brought_blocks -= request.stored_blocks
        else:
            self.used_host_blocks -= request.stored_blocks
        request.stored_blocks = 0
        request.is_brought = False

    def land(self) -> list[RequestState]:
        """End the copies that have landed; return the requests that are back on the device."""
        landed, self.brought = self.brought, []
        if self.copies is not None:
            landed += map(self.copying.pop, self.copies.land(self.load.now_s))
        for request in landed:
            request.is_moving = False
        self._look_ahead()
        back = [request for request in landed if not request.is_waiting and not request.is_gone]
        for request in back:
            self.free(request)
        return back
