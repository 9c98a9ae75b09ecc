"""Fair shares of places and turns: between callers, and between the clients that a caller names.

The client that has received least is next (start-time fair queueing). One that starts to wait gets
no credit for the time before. The clients that a caller names share the caller's part.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")
_MAX_IDLE: Final = 1024
"""Members of a group beyond which idle ones lose the count of what they have received."""


class Client(NamedTuple):
    """Owner of a prompt or a task."""

    caller: str = ""
    """Token, else address."""
    name: str = ""
    """A client of that caller, in the caller's words."""


NOBODY: Final = Client()


@dataclass(slots=True, eq=False)
class Share(Generic[T]):
    """Part of a caller or client, and the parts within it."""

    num: int = 0
    """Entries within it."""
    cost: float = 0.0
    """Cost of these."""
    served: float = 0.0
    """Cost served so far, on the scale of `now` of the part around it."""
    now: float = 0.0
    """`served` of the member last in turn."""
    members: dict[str, Share[T]] = field(default_factory=dict)
    entries: list[tuple[float, int, Entry[T]]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One item with a place; `waits` until it leaves."""

    item: T
    cost: float
    path: list[Share[T]]
    waits: bool = True


class FairQueue(Generic[T]):
    """Items by client; within a client the most urgent is first. The caller locks."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.all: Share[T] = Share()
        """Number and cost of all waiting items."""

    def enter(self, client: Client, item: T, cost: float = 1.0) -> Entry[T]:
        """Give an item a place, and no turn."""
        path = [self.all]
        for key in client:
            share = path[-1].members.setdefault(key, Share())
            if not share.num:
                share.served = max(share.served, path[-1].now)
            path.append(share)
        for share in path:
            share.num += 1
            share.cost += cost
        return Entry(item, cost, path)

    def push(self, client: Client, item: T, cost: float, due: float = 0.0) -> Entry[T]:
        """Give an item a place and, in its time, a turn."""
        entry = self.enter(client, item, cost)
        heapq.heappush(entry.path[-1].entries, (due, next(self._numbers), entry))
        return entry

    def leave(self, entry: Entry[T], *, is_served: bool = False) -> None:
        """Free the place of an entry; a served one counts as received by its client."""
        entry.waits = False
        for share in entry.path:
            share.num -= 1
            share.cost = share.cost - entry.cost if share.num else 0.0
            share.served += entry.cost * is_served
        if not share.num:
            share.entries.clear()
        if not self.all.num:  # All are equal again.
            self.all.members.clear()

    def pop(self) -> Entry[T] | None:
        """Take the most urgent entry of the client in turn; None of an empty queue."""
        if not self.all.num:
            return None
        share = self.all
        while share.members:
            is_full = len(share.members) > _MAX_IDLE
            for key, member in list(share.members.items()):
                if not member.num and (is_full or member.served <= share.now):
                    del share.members[key]
            member = min((m for m in share.members.values() if m.num), key=lambda m: m.served)
            share.now, share = member.served, member
        while not (entry := heapq.heappop(share.entries)[2]).waits:
            pass
        self.leave(entry, is_served=True)
        return entry

    def upcoming(self, first: Entry[T]) -> Iterator[Entry[T]]:
        """Yield waiting entries in no strict order, those of the client of `first` first."""
        shares = [share for one in self.all.members.values() for share in one.members.values()]
        for share in sorted(shares, key=lambda share: share is not first.path[-1]):
            yield from (entry for _, _, entry in share.entries if entry.waits)

    def fits(self, client: Client, limit: float, size: float | None = None) -> bool:
        """Return whether one more item, or one of that cost, has room.

        Of a full queue each client that waits has an equal part, and a newcomer finds room.
        """
        share, new = self.all, 1 if size is None else size
        if (share.num if size is None else share.cost) + new <= limit:
            return True
        for key in client:
            group, share = share, share.members.get(key) or Share()
            limit /= 1 + sum(m.num > 0 for m in group.members.values() if m is not share)
            if (share.num if size is None else share.cost) + new > limit:
                return False
        return True

    def ahead(self, client: Client, due: float) -> float:
        """Return the cost before a new item: of each other client as much as of its own."""
        path = [self.all]
        for key in client:
            path.append(path[-1].members.get(key) or Share())
        cost = sum(e.cost for at, _, e in path[-1].entries if e.waits and at <= due)
        for group, share in reversed(list(itertools.pairwise(path))):
            others = [member.cost for member in group.members.values() if member is not share]
            cost += sum(min(other, cost) for other in others)
        return cost
