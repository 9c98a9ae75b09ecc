"""Endpoints of the engines, IP:PORT, from a file or from DNS; read again at regular times."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from lengthwise.errors import ConfigError, DataError, LengthwiseError, raised_as

log = logging.getLogger(__name__)


def endpoint_of(text: str) -> str:
    """Return an endpoint as IP:PORT, an IPv6 address in brackets. Raises ValueError for others."""
    host, _, port = text.strip().rpartition(":")
    address = ipaddress.ip_address(host.strip("[]"))
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is not a port")
    return f"[{address}]:{int(port)}" if address.version == 6 else f"{address}:{int(port)}"


def read_endpoints(path: Path) -> list[str]:
    """Read a file with one IP:PORT per line; lines with # are left out. Raises DataError."""
    advice = "write one IP:PORT per line"
    foreign = OSError, UnicodeDecodeError
    with raised_as(DataError, f"cannot be read ({{}}); {advice}", *foreign, path=path):
        lines = path.read_text().splitlines()
    found: dict[str, None] = {}
    for row, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found[endpoint_of(line)] = None
            except ValueError as error:
                message = f"{line.strip()!r} is no endpoint ({error}); {advice}"
                raise DataError(message, path=path, row=row) from error
    return list(found)


async def resolve(name: str) -> list[str]:
    """Return the endpoints behind HOST:PORT, one for each address. Raises ConfigError."""
    host, _, port = name.rpartition(":")
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        names = sorted({endpoint_of(f"[{entry[4][0]}]:{port}") for entry in found})
    except (OSError, ValueError) as error:
        message = f"dns is {name!r} ({error}); use HOST:PORT, of a host with an address"
        raise ConfigError(message) from error
    return names


async def endpoint_lists(source: Path | str, *, every_s: float = 2.0) -> AsyncIterator[list[str]]:
    """Yield the endpoints of a file or of HOST:PORT in DNS, at first and whenever they change.

    After a failed reading the last ones stay. Raises as the first reading.
    """
    last = None
    while True:
        try:
            names = read_endpoints(source) if isinstance(source, Path) else await resolve(source)
        except LengthwiseError as error:
            if last is None:
                raise
            log.warning("the last endpoints stay: %s", error)
            names = last
        if names != last:
            log.info("endpoints: %s", ", ".join(names) or "none")
            last = names
            yield names
        await asyncio.sleep(every_s)
