"""Host memory for KV blocks that leave the GPU, and the link between the two."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any, Literal

from lengthwise.errors import at_least, require
from scheduler_adapters.simulator.latency.facts import facts_of


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLink:
    """The link between GPU and host; copies in both directions share it."""

    kv_bytes_per_token: int
    bytes_per_s: float = 50e9
    """Of all copies together; the default is that of PCIe 5 x16 in practice."""
    latency_s: float = 0.0
    """From a copy's last byte to its use; the link is free in between."""
    sharing: Literal["fair", "fifo"] = "fair"
    """fair: copies under way share the link equally; fifo: one after the other."""
    max_blocks: int | None = None
    """KV blocks that the host holds, copies under way included; None: any number. Blocks without
    room are computed anew."""

    def __post_init__(self) -> None:
        at_least("kv_bytes_per_token", self.kv_bytes_per_token, 1)
        rate, most = self.bytes_per_s, self.max_blocks
        require("bytes_per_s", rate, 0 < rate < inf, "a number above 0")
        require("latency_s", self.latency_s, 0 <= self.latency_s < inf, "seconds >= 0")
        is_known = self.sharing in ("fair", "fifo")
        require("sharing", repr(self.sharing), is_known, "'fair' or 'fifo'")
        require("max_blocks", most, most is None or most >= 0, "0 or more, or None")

    @classmethod
    def of_model(cls, name: str, **changes: Any) -> HostLink:
        """Return the link of a known model's instance; `changes` are fields of this class.

        Raises:
            ConfigError: no such model; the known ones are listed.
        """
        return cls(kv_bytes_per_token=facts_of(name).kv_bytes_per_token, **changes)


class Copies:
    """Copies under way over one link, in virtual time.

    State changes at events only, so reading it at any time has no effect.
    """

    def __init__(self, link: HostLink, *, block_tokens: int) -> None:
        self.link = link
        self.block_bytes = link.kv_bytes_per_token * block_tokens
        self.started = 0
        self.clock_s = 0.0
        """Time of the last event; since then the number of copies has been the same."""
        self.served_bytes = 0.0
        """Bytes until then of a copy that was under way all the time."""
        self.moving: list[tuple[float, int, int]] = []
        """Heap of (`served_bytes` at its end, number, row)."""
        self.landing: list[tuple[float, int, int]] = []
        """Heap of (time of use, number, row)."""

    def start(self, now_s: float, row: int, blocks: int) -> None:
        """Begin to copy `blocks` of the request at `row`."""
        self.started += 1
        copy_bytes = blocks * self.block_bytes
        if self.link.sharing == "fifo":
            self.clock_s = max(self.clock_s, now_s) + copy_bytes / self.link.bytes_per_s
            heappush(self.landing, (self.clock_s + self.link.latency_s, self.started, row))
            return
        self._end_copies(now_s)
        if self.moving:
            share = self.link.bytes_per_s / len(self.moving)
            self.served_bytes += (now_s - self.clock_s) * share
        self.clock_s = now_s
        heappush(self.moving, (self.served_bytes + copy_bytes, self.started, row))

    @property
    def next_landing_s(self) -> float:
        """Time at which the next copy can be used, if none starts before; inf without any."""
        end_s = self._next_end_s() + self.link.latency_s
        return min(end_s, self.landing[0][0]) if self.landing else end_s

    def land(self, now_s: float) -> list[int]:
        """Remove the copies that can be used by now; return their rows in order of that time."""
        self._end_copies(now_s)
        landed = []
        while self.landing and self.landing[0][0] <= now_s:
            landed.append(heappop(self.landing)[2])
        return landed

    def _next_end_s(self) -> float:
        if not self.moving:
            return inf
        left_bytes = max(0.0, self.moving[0][0] - self.served_bytes)
        return self.clock_s + left_bytes * len(self.moving) / self.link.bytes_per_s

    def _end_copies(self, now_s: float) -> None:
        """End the copies that have their last byte by now; the others then share the link."""
        while (end_s := self._next_end_s()) <= now_s:
            self.served_bytes, number, row = heappop(self.moving)
            self.clock_s = end_s
            heappush(self.landing, (end_s + self.link.latency_s, number, row))
        if not self.moving:
            self.served_bytes = 0.0
