"""KV blocks that leave for host memory when their request is evicted, and come back."""

from __future__ import annotations

from math import inf

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.cohort import Live
from scheduler_adapters.simulator.engine.ranks import Ranks
from scheduler_adapters.simulator.host_link import Copies
from scheduler_adapters.simulator.instance import Instance


class Offload(Ranks):
    """The second layer of the engine: copies to the host and back.

    A request that is copied back holds a seat and its blocks, so it is among the residents; but it
    does not run, is not evicted, and to the policy it waits.
    """

    __slots__ = ("copies", "host_used_blocks", "max_host_blocks", "next_landing_s")

    def __init__(self, policy: Policy, instance: Instance) -> None:
        super().__init__(policy, instance)
        instance.check(policy)
        host = instance.host
        self.copies = None if host is None else Copies(host, block_tokens=instance.block_tokens)
        self.max_host_blocks = inf if host is None or host.max_blocks is None else host.max_blocks
        self.host_used_blocks = 0
        self.next_landing_s = inf

    def _offload(self, live: Live, blocks: int) -> None:
        """Copy what a victim has computed to the host, where that has room."""
        if blocks and self.host_used_blocks + blocks <= self.max_host_blocks:
            live.host_blocks = blocks
            self.host_used_blocks += blocks
            self._copy(live)

    def _reload(self, live: Live) -> None:
        """Give an offloaded request its seat and its blocks, and copy it back."""
        whole_blocks = -(-live.context // self.block_tokens)
        self.used_blocks += whole_blocks if live.prefill_left else live.host_blocks
        live.is_waiting = False
        self.residents[live.row] = live
        self.num_returning += 1
        self._copy(live)

    def _copy(self, live: Live) -> None:
        assert self.copies is not None
        live.is_moving = True
        self.copies.start(self.load.now_s, live.row, live.host_blocks)
        self.next_landing_s = self.copies.next_landing_s

    def _land(self) -> None:
        """Requests whose copies have landed: on the host, or back and running again."""
        assert self.copies is not None
        back = []
        for row in self.copies.land(self.load.now_s):
            live = self.lives[row]
            live.is_moving = False
            if not live.is_waiting:
                back.append(live)
        self.next_landing_s = self.copies.next_landing_s
        for live in back:
            self.host_used_blocks -= live.host_blocks
            live.host_blocks = 0
            self.num_returning -= 1
            self.num_waiting -= 1
            self.num_prefilling += live.prefill_left > 0
        self._count()
        for live in back:
            self._ask(live)
            self._place(live)
