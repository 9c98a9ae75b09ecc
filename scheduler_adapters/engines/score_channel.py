"""Late scores on their way from the API server's process into those of the engines.

Each engine has a datagram socket in the folder that the processes share (`METRICS_FOLDER`); only
the same user may write to it. A score goes to all engines: the one that knows its ticket takes it.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, Final

from scheduler_adapters.engines.engine_metrics import METRICS_FOLDER
from scheduler_adapters.planner.late_scores import LateScore, late_score
from scheduler_adapters.planner.request_annotations import ticket_of

log = logging.getLogger(__name__)

_SOCKET: Final = "lengthwise-scores-{}.sock"
_MAX_BYTES: Final = 1 << 16
_RETRY_S: Final = 0.005
"""A socket holds few datagrams; the thread that reads them is there within a switch of threads."""


class ScoreReceiver:
    """Reads an engine's late scores in a thread of its own.

    Args:
        number: of the engine.
        take: is told of each score, in that thread.

    Raises:
        OSError: the socket cannot be made there.
    """

    def __init__(self, folder: Path, number: int, take: Callable[[LateScore], object]) -> None:
        self._path = folder / _SOCKET.format(number)
        self._take = take
        self._is_open = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._socket.bind(str(self._path))
        except OSError:
            self._socket.close()
            raise
        finally:
            os.umask(mask)
        self._thread = Thread(target=self._read, name="lengthwise-scores", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more scores."""
        self._is_open = False
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        while True:
            content = self._socket.recv(_MAX_BYTES)
            if not self._is_open:
                return
            try:
                hints = json.loads(content)
                late = late_score(ticket_of(hints), hints)
            except (ValueError, AttributeError, RecursionError):
                late = None
            if late is not None:
                self._take(late)


def receiver_from_environment(
    number: int, take: Callable[[LateScore], object]
) -> ScoreReceiver | None:
    """Return the receiver of an engine; None where the processes share no folder."""
    if not (folder := os.environ.get(METRICS_FOLDER)):
        return None
    try:
        return ScoreReceiver(Path(folder), number, take)
    except OSError as error:
        log.warning("late scores cannot be received in %s (%s): they are not used", folder, error)
        return None


class ScoreSender:
    """Sends scores to the engines that share `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    async def send(self, hints: Mapping[str, Any]) -> None:
        """Send a score and its ticket; waits while an engine's socket is full."""
        content = json.dumps(hints).encode()
        for path in self._folder.glob(_SOCKET.format("*")):
            while not self._sent(content, str(path)):
                await asyncio.sleep(_RETRY_S)

    def _sent(self, content: bytes, path: str) -> bool:
        try:
            self._socket.sendto(content, path)
        except BlockingIOError:
            return False
        except OSError as error:  # the engine has gone
            log.debug("no late score for %s: %s", path, error)
        return True

    def close(self) -> None:
        """Send no more."""
        self._socket.close()
