"""Connections to one port, found among this process's own sockets. Linux.

gRPC's core accepts connections by itself. It limits their number, but not that of one address. So
the sockets are counted from time to time. Of too many, those that were silent longest are ended:
their clients lose nothing and may connect again.
"""

import os
import socket
import stat
import struct
from collections import Counter
from contextlib import ExitStack, suppress
from math import ceil
from typing import Any, Final

from lengthwise.addresses import network_of

_FILES: Final = "/proc/self/fd"
_KEPT: Final = 7 / 8
"""Part of all connections that stay, so that a new one finds room."""
_LAST_DATA_RECEIVED: Final = 52
"""Offset in `tcp_info` of the milliseconds since then."""


def end_excess(port: int, max_connections: int, max_of_address: int) -> int:
    """End the connections to a port beyond a limit; return their number."""
    found: dict[Any, tuple[int, socket.socket]] = {}
    with ExitStack() as copies:
        for name in os.listdir(_FILES) if os.path.isdir(_FILES) else ():
            with suppress(OSError):
                if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    continue
                # A copy: gRPC may close its own at any moment, and the number may be another's.
                one = socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM)
                copies.enter_context(one)
                if one.getsockname()[1:2] == (port,):
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
                    silent_ms = struct.unpack_from("=I", info, _LAST_DATA_RECEIVED)[0]
                    found[one.getpeername()] = silent_ms, one
        by_address: Counter[str] = Counter()
        ranked: list[tuple[int, socket.socket]] = []
        for peer, (_, one) in sorted(found.items(), key=lambda each: each[1][0]):
            by_address[host := network_of(peer[0])] += 1
            ranked.append((by_address[host], one))
        # An address with few connections loses one last.
        ranked.sort(key=lambda each: each[0])
        kept = ceil(max_connections * _KEPT)
        ended = ranked[kept:] + [each for each in ranked[:kept] if each[0] > max_of_address]
        for _, one in ended:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
    return len(ended)
