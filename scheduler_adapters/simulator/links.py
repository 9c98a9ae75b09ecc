"""Links that carry KV, to host memory or between instances, and the copies under way over them."""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any, Self

from lengthwise.settings import Count, NonNegativeFinite, PositiveFinite, settings
from scheduler_adapters.simulator.latency.facts import MODELS, facts_of


@settings
class KvLink:
    """A link with a bandwidth and a latency."""

    kv_bytes_per_token: Count
    bytes_per_s: PositiveFinite
    latency_s: NonNegativeFinite = 0.0
    """From the last byte of a copy to its use; the link is free in between."""

    @classmethod
    def of_model(cls, name: str, **changes: Any) -> Self:
        """Return the link for a known model's KV; `changes` are fields of this class.

        Raises:
            ConfigError: no such model; the known ones are listed.
        """
        model = facts_of("model", name, MODELS)
        return cls(kv_bytes_per_token=model.kv_bytes_per_token, **changes)


@settings
class HostLink(KvLink):
    """The link between GPU and host memory; copies in both directions share it equally."""

    bytes_per_s: PositiveFinite = 50e9
    """Sum of all copies; the default is PCIe 5 x16 in practice."""


@settings
class Fabric(KvLink):
    """The network of a cluster: every instance has one endpoint, for both directions."""

    bytes_per_s: PositiveFinite = 12.5e9
    """Bandwidth of one endpoint; the default is 100 Gbit/s."""


class CopiesUnderWay(ABC):
    """Copies over links in virtual time, from their start to their first use.

    State changes at events only, so reading it at any time has no effect.
    """

    def __init__(self, link: KvLink) -> None:
        self.link = link
        self.clock_s = 0.0
        """Time of the last event; since then the rates have been the same."""
        self.landing: list[tuple[float, int]] = []
        """Heap of (time of use, number) of copies that have their last byte."""

    @abstractmethod
    def _next_end(self) -> tuple[float, int]:
        """Return when the first copy ends, and its number; (inf, -1) without copies."""

    @abstractmethod
    def _end(self, end_s: float, number: int) -> None:
        """Remove a copy that has its last byte at `end_s`; the others share its bandwidth."""

    @property
    def next_landing_s(self) -> float:
        """Time at which the next copy can be used, if none starts before; inf without any."""
        end_s = self._next_end()[0] + self.link.latency_s
        return min(end_s, self.landing[0][0]) if self.landing else end_s

    def land(self, now_s: float) -> list[int]:
        """Remove the copies that can be used by now; return their numbers in order of that time."""
        self._end_copies(now_s)
        landed = []
        while self.landing and self.landing[0][0] <= now_s:
            landed.append(heappop(self.landing)[1])
        return landed

    def _end_copies(self, now_s: float) -> None:
        while (end := self._next_end())[0] <= now_s:
            self._end(*end)
            heappush(self.landing, (end[0] + self.link.latency_s, end[1]))


class HostCopies(CopiesUnderWay):
    """Copies over one link, which they share equally.

    All have the same rate, so one number of served bytes stands for all of them.
    """

    def __init__(self, link: HostLink, *, block_tokens: int) -> None:
        super().__init__(link)
        self.block_bytes = link.kv_bytes_per_token * block_tokens
        self.started = 0
        self.served_bytes = 0.0
        """Bytes until `clock_s` of a copy that was under way all the time."""
        self.moving: list[tuple[float, int]] = []
        """Heap of (`served_bytes` at the end, number)."""

    def start(self, now_s: float, blocks: int) -> int:
        """Begin to copy `blocks`; return the number of the copy."""
        self._end_copies(now_s)
        if self.moving:
            self.served_bytes += (now_s - self.clock_s) * (self.link.bytes_per_s / len(self.moving))
        self.clock_s = now_s
        self.started += 1
        heappush(self.moving, (self.served_bytes + blocks * self.block_bytes, self.started))
        return self.started

    def _next_end(self) -> tuple[float, int]:
        if not self.moving:
            return inf, -1
        end_bytes, number = self.moving[0]
        left_bytes = max(0.0, end_bytes - self.served_bytes)
        return self.clock_s + left_bytes * len(self.moving) / self.link.bytes_per_s, number

    def _end(self, end_s: float, number: int) -> None:
        self.served_bytes, _ = heappop(self.moving)
        self.clock_s = end_s
        if not self.moving:
            self.served_bytes = 0.0


@dataclass(slots=True)
class _Transfer:
    """One transfer with bytes left to send."""

    ends: tuple[int, int]
    """Source and destination."""
    left_bytes: float
    rate: float = 0.0
    """Bytes per second since the last event."""


class Transfers(CopiesUnderWay):
    """Copies between instances.

    Transfers share each endpoint equally; a transfer has the lesser share of its two ends.
    """

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.moving: dict[int, _Transfer] = {}

    def start(
        self, now_s: float, number: int, source: int, destination: int, num_bytes: float
    ) -> None:
        """Begin a transfer; of several that land at one time the least `number` is first."""
        self._end_copies(now_s)
        self._pass(now_s)
        self.moving[number] = _Transfer((source, destination), num_bytes)
        self._share()

    def cancel(self, now_s: float, number: int) -> None:
        """Cancel a transfer that has not landed, if it has begun."""
        self._end_copies(now_s)
        if number in self.moving:
            self._end(now_s, number)
        else:
            self.landing = sorted(entry for entry in self.landing if entry[1] != number)

    def _next_end(self) -> tuple[float, int]:
        ends = ((self.clock_s + one.left_bytes / one.rate, n) for n, one in self.moving.items())
        return min(ends, default=(inf, -1))

    def _end(self, end_s: float, number: int) -> None:
        self._pass(end_s)
        del self.moving[number]
        self._share()

    def _pass(self, now_s: float) -> None:
        for one in self.moving.values():
            one.left_bytes = max(0.0, one.left_bytes - (now_s - self.clock_s) * one.rate)
        self.clock_s = now_s

    def _share(self) -> None:
        counts = Counter(end for one in self.moving.values() for end in one.ends)
        for one in self.moving.values():
            one.rate = self.link.bytes_per_s / max(counts[end] for end in one.ends)
