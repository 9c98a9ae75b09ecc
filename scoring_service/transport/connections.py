"""Connections to one port, found among this process's own sockets. Linux.

gRPC's core accepts connections by itself. It limits their number, but not that of one address. So
the sockets are counted from time to time. Of too many, those that were silent longest are ended:
their clients lose nothing and may connect again.
"""

import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lengthwise.addresses import network_of

_FILES: Final = "/proc/self/fd"
_KEPT: Final = 7 / 8
"""Part of all connections that stay, so that a new one finds room."""
_TCP_INFO_BYTES: Final = 60
_LAST_DATA_RECEIVED: Final = 52
"""Offset in `tcp_info` of the milliseconds since then."""


@dataclass(frozen=True)
class Connections:
    """The connections to a port of this process, and their limits."""

    port: int
    max_connections: int
    max_address_connections: int

    def end_excess(self) -> int:
        """End the connections beyond a limit; return their number."""
        by_address: Counter[str] = Counter()
        ranked: list[tuple[int, socket.socket]] = []
        for _, host, one in sorted(self._found(), key=lambda each: each[0]):
            by_address[host] += 1
            ranked.append((by_address[host], one))
        num_ended = 0
        # An address with few connections loses one last.
        for position, (rank, one) in enumerate(sorted(ranked, key=lambda each: each[0])):
            with one, suppress(OSError):
                if rank > self.max_address_connections or position >= self.max_connections * _KEPT:
                    num_ended += 1
                    one.shutdown(socket.SHUT_RDWR)
        return num_ended

    def _found(self) -> Iterator[tuple[int, str, socket.socket]]:
        """Yield milliseconds of silence, the address, and a copy of the socket."""
        # Listed once with the listing's own file, whose number may become that of a copy.
        copies = set[int]()
        for name in os.listdir(_FILES) if os.path.isdir(_FILES) else ():
            with suppress(OSError):
                if int(name) in copies:
                    continue
                # gRPC may close its own at any moment, and the number may then be another's.
                copies.add(number := os.dup(int(name)))
                try:
                    one = socket.socket(fileno=number)
                except OSError:
                    os.close(number)
                    continue
                try:
                    host, *_ = one.getpeername()
                    if one.getsockname()[1] != self.port:
                        raise OSError
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                    (silent_ms,) = struct.unpack_from("=I", info, _LAST_DATA_RECEIVED)
                except (OSError, ValueError, IndexError):  # not one of a client, or closed by now
                    one.close()
                    continue
                yield silent_ms, network_of(host), one
