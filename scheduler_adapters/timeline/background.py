"""Writing beside an engine: a thread that may block, and drops that are counted and logged once."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

Item = TypeVar("Item")
MAX_WAITING: Final = 1024
"""Most items that wait to be written; further ones are dropped."""
_EVERY_S: Final = 0.25
_CLOSE_S: Final = 1.0


@dataclass(eq=False)
class Drops:
    """Number of dropped items of one kind; the first drop is logged."""

    what: str
    count: int = 0

    def add(self, number: int, why: object) -> None:
        """Count dropped items."""
        if not self.count:
            # Not a warning: vLLM's API server logs errors only.
            log.error("%s: some are dropped (%s); this is logged once", self.what, why)
        self.count += number


class BackgroundWriter(Generic[Item]):
    """Calls `write` in a thread with all items that wait; after an OSError they are dropped."""

    def __init__(self, what: str, write: Callable[[Sequence[Item]], object]) -> None:
        self.drops = Drops(what)
        self._write = write
        self._items: deque[Item] = deque()
        self._wake = Event()
        self._is_open = True
        self._thread = Thread(target=self._run, name=f"lengthwise-{what}", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Append an item, or drop it if too many wait."""
        if len(self._items) >= MAX_WAITING:
            self.drops.add(1, f"{MAX_WAITING} wait to be written")
            return
        self._items.append(item)
        # A thread that is woken at each step would contend with the step.
        if len(self._items) > MAX_WAITING // 2:
            self._wake.set()

    def close(self) -> bool:
        """Write what waits; return False if the thread is blocked, and leave it."""
        self._is_open = False
        self._wake.set()
        self._thread.join(_CLOSE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._is_open:
            self._wake.wait(_EVERY_S)
            self._wake.clear()
            if items := [self._items.popleft() for _ in range(len(self._items))]:
                try:
                    self._write(items)
                except OSError as error:
                    self.drops.add(len(items), error)
