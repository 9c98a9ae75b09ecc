"""Sockets of the engines in a folder that vLLM's processes share, and the engines' reports.

A report is the present figures of an engine. A slow reader holds up no step. Imports no engine.
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final

from scheduler_adapters.timeline.background import Drops

SHARED_FOLDER: Final = "LENGTHWISE_FOLDER"
"""Environment variable: the folder that vLLM's processes share."""
_REPORTS: Final = "lengthwise-report-{}.sock"
_READ_S: Final = 2.0


class EngineSocket:
    """A socket at `path` for the same user; a thread calls `serve` with it again and again.

    Raises OSError: it cannot be made there.
    """

    def __init__(
        self, path: Path, kind: socket.SocketKind, serve: Callable[[socket.socket], object]
    ) -> None:
        self._path, self._serve, self._is_open = path, serve, True
        self._socket = socket.socket(socket.AF_UNIX, kind)
        mask = os.umask(0o177)
        try:
            path.unlink(missing_ok=True)
            self._socket.bind(str(path))
        except OSError:
            self._socket.close()
            raise
        finally:
            os.umask(mask)
        if kind is socket.SOCK_STREAM:
            self._socket.listen()
        self._thread = Thread(target=self._run, name=path.stem, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and remove the socket."""
        self._is_open = False
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        with suppress(OSError):  # closed
            while self._is_open:
                self._serve(self._socket)


def report_server(folder: Path, number: int, report: Callable[[], Any]) -> EngineSocket:
    """Send what `report` returns, JSON values, to each reader of engine `number`."""

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(Exception):  # its reader counts a missing report
            connection.settimeout(_READ_S)
            connection.sendall(json.dumps(report()).encode())

    return EngineSocket(folder / _REPORTS.format(number), socket.SOCK_STREAM, serve)


class EngineReports:
    """Reads the reports of all engines that share `folder`. A missing one is counted as dropped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.drops = Drops("reports of the engine")

    async def read(self) -> list[dict[str, Any]]:
        """Return the present reports, by number of the engine."""
        reports, paths = [], sorted(self._folder.glob(_REPORTS.format("*")))
        for path in paths:
            try:
                async with asyncio.timeout(_READ_S):
                    reader, writer = await asyncio.open_unix_connection(path)
                    with closing(writer):
                        reports.append(json.loads(await reader.read()))
            except (OSError, ValueError) as error:  # a time-out is an OSError
                self.drops.add(1, error or "time-out")
        if not paths:
            self.drops.add(1, f"{self._folder} holds none")
        return reports
