"""Addresses of services, the proxies on the way, and OpenAI's API. Standard library only."""

import ipaddress
import json
import os
import re
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from lengthwise.errors import ConfigError

_HTTP: Final = ("http://", "https://")
_TARGET: Final = re.compile(r"(?:dns:(?:///)?|ipv[46]:)?(\[[^]]*\]|[^:/]*)(?::\w+)?")


def is_loopback(address: str) -> bool:
    """Return whether an HTTP address, HOST:PORT or another gRPC target is on this machine."""
    host = _host(address)
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or address.startswith(("unix:", "unix-abstract:"))


def network_of(host: str) -> str:
    """Return a client's address, or its IPv6 network, of which it may have all addresses."""
    if ":" in host:  # read for each request: IPv4 stays as it is
        with suppress(ValueError):
            found = ipaddress.IPv6Address(host.partition("%")[0])
            return str(found.ipv4_mapped or ipaddress.IPv6Address(int(found) >> 64 << 64))
    return host


def shown(address: str) -> str:
    """Return an address for a message, with the variable of the proxy on the way to it."""
    from urllib.request import proxy_bypass

    names = ["grpc_proxy", "https_proxy", "http_proxy"]
    if address.startswith(_HTTP):
        names = [f"{address.partition(':')[0]}_proxy", "all_proxy"]
        names = [spelt for name in names for spelt in (name, name.upper())]
    name, host = next(filter(os.environ.get, names), None), _host(address)
    if name is None or not host or is_loopback(address) or proxy_bypass(host):
        return address
    without_password = re.sub(r"^(\w+://)?.*@", r"\1", os.environ[name])
    return f"{address} through {name}={without_password}"


def bypass_proxies() -> None:
    """Add this machine to no_proxy, for every HTTP client of this process and of its children."""
    if any(re.fullmatch("(http|https|all|grpc)_proxy", name, re.I) for name in os.environ):
        listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        hosts = [*filter(None, listed.split(",")), "127.0.0.1", "localhost", "::1"]
        if "*" not in hosts:
            os.environ["no_proxy"] = ",".join(dict.fromkeys(hosts))


def api_base(url: str) -> str:
    """Return the base of the API without a final slash, with /v1 if it has no path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"endpoint is {url!r}; use an address such as http://127.0.0.1:8000/v1")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/v1", "", ""))


def api_headers(key: str | None) -> dict[str, str]:
    """Return the headers that carry the key, if there is one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def error_message(body: str) -> str:
    """Return the message in the body of an error, in one line of at most 200 characters."""
    try:
        error = json.loads(body)
    except ValueError:
        error = body
    for key in ("error", "message"):
        error = error.get(key, error) if isinstance(error, dict) else error
    return " ".join((error if isinstance(error, str) else json.dumps(error)).split())[:200]


def _host(address: str) -> str:
    if address.startswith(_HTTP):
        return urlsplit(address).hostname or ""
    found = _TARGET.fullmatch(address)
    return found[1].strip("[]").lower() if found else ""
