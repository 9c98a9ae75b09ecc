"""The links between instances, and the transfers of KV under way over them."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any

from lengthwise.errors import at_least, require
from scheduler_adapters.simulator.latency.facts import facts_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """The network of a cluster: every instance has one endpoint, for both directions."""

    kv_bytes_per_token: int
    bytes_per_s: float = 12.5e9
    """Of one endpoint; the default is 100 Gbit/s."""
    latency_s: float = 0.0
    """From a transfer's last byte to its use; the endpoints are free in between."""

    def __post_init__(self) -> None:
        at_least("kv_bytes_per_token", self.kv_bytes_per_token, 1)
        require("bytes_per_s", self.bytes_per_s, 0 < self.bytes_per_s < inf, "a number above 0")
        require("latency_s", self.latency_s, 0 <= self.latency_s < inf, "seconds >= 0")

    @classmethod
    def of_model(cls, name: str, **changes: Any) -> Fabric:
        """Return the fabric for a known model's KV; `changes` are fields of this class.

        Raises:
            ConfigError: no such model; the known ones are listed.
        """
        return cls(kv_bytes_per_token=facts_of(name).kv_bytes_per_token, **changes)


@dataclass(slots=True)
class _Transfer:
    """One transfer that still has bytes to go."""

    ends: tuple[int, int]
    """Source and destination."""
    left_bytes: float
    rate: float = 0.0
    """Bytes per second since the last event."""


class Transfers:
    """Transfers under way, in virtual time.

    The transfers at an endpoint have equal shares of it; one goes at the lesser share of its two
    ends. State changes at events only, so reading it at any time has no effect.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.clock_s = 0.0
        """Time of the last event; since then the rates have been the same."""
        self.moving: dict[int, _Transfer] = {}
        self.landing: list[tuple[float, int]] = []
        """Heap of (time of use, number)."""

    def start(
        self, now_s: float, number: int, source: int, destination: int, num_bytes: float
    ) -> None:
        """Begin a transfer; of those that land at one time the least `number` goes first."""
        self._end_transfers(now_s)
        self._pass(now_s)
        self.moving[number] = _Transfer((source, destination), num_bytes)
        self._share()

    def cancel(self, now_s: float, number: int) -> None:
        """Give up a transfer that has not landed, if it has begun."""
        self._end_transfers(now_s)
        if number in self.moving:
            self._pass(now_s)
            del self.moving[number]
            self._share()
        else:
            self.landing = sorted(entry for entry in self.landing if entry[1] != number)

    @property
    def next_landing_s(self) -> float:
        """Time at which the next transfer can be used, if none starts before; inf without any."""
        end_s = self._next_end()[0] + self.fabric.latency_s
        return min(end_s, self.landing[0][0]) if self.landing else end_s

    def land(self, now_s: float) -> list[int]:
        """Remove the transfers that can be used by now; return their numbers in order."""
        self._end_transfers(now_s)
        landed = []
        while self.landing and self.landing[0][0] <= now_s:
            landed.append(heappop(self.landing)[1])
        return landed

    def _next_end(self) -> tuple[float, int]:
        """Return when the first transfer has its last byte, and its number."""
        ends = ((self.clock_s + one.left_bytes / one.rate, n) for n, one in self.moving.items())
        return min(ends, default=(inf, -1))

    def _end_transfers(self, now_s: float) -> None:
        """End the transfers that have their last byte by now; the others then share anew."""
        while (end := self._next_end())[0] <= now_s:
            end_s, number = end
            self._pass(end_s)
            del self.moving[number]
            heappush(self.landing, (end_s + self.fabric.latency_s, number))
            self._share()

    def _pass(self, now_s: float) -> None:
        for one in self.moving.values():
            one.left_bytes = max(0.0, one.left_bytes - (now_s - self.clock_s) * one.rate)
        self.clock_s = now_s

    def _share(self) -> None:
        counts: dict[int, int] = {}
        for one in self.moving.values():
            for end in one.ends:
                counts[end] = counts.get(end, 0) + 1
        for one in self.moving.values():
            one.rate = self.fabric.bytes_per_s / max(counts[end] for end in one.ends)
