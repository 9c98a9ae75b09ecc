"""Classes of users, identified by API key or by a header that a gateway sets.

    {"classes": {"chat": {"tbt_s": 0.05}, "batch": {}},
     "api_keys": {"sk-3f9c": "chat"}, "header": "X-User-Class", "trusted_proxies": ["10.0.0.0/8"],
     "default": "batch", "trusted_keys": ["sk-gate"]}

A class may have a target time between tokens, in seconds. The key decides first, then the header
of a trusted proxy, then `default`; a class that is not in `classes` does not count. Requests with a
trusted key may carry hints of their own. Imports no engine.
"""

import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from math import isfinite
from pathlib import Path
from typing import Any, Final

from lengthwise.errors import ConfigError
from scheduler_adapters.planner.request_annotations import TBT_S, USER_CLASS

_KEYS: Final = frozenset(
    {"classes", "api_keys", "header", "trusted_proxies", "default", "trusted_keys"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class UserClasses:
    """The classes, and the keys and header that assign requests to them."""

    tbt_s: Mapping[str, float | None] = field(default_factory=dict)
    """Class -> target time between tokens in seconds; None: no target."""
    api_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Bearer token -> class."""
    header: str | None = None
    """Name of a header with the class, set by gateways."""
    trusted_proxies: Sequence[str] = ()
    """Addresses or networks of those gateways; the header of others does not count."""
    default: str | None = None
    """Class of all other requests; None: no class."""
    trusted_keys: Sequence[str] = field(default=(), repr=False)
    """Bearer tokens whose requests may carry hints of their own."""

    def __post_init__(self) -> None:
        if self.header is not None and not self.trusted_proxies:
            raise ConfigError(
                f"header {self.header!r} could be sent by any client; name the gateways that set "
                'it, "trusted_proxies": ["10.0.0.1"]'
            )
        for address in self.trusted_proxies:
            _network(address)
        for name in [*self.api_keys.values(), *([self.default] if self.default else [])]:
            if name not in self.tbt_s:
                raise ConfigError(f"no class {name!r}; use one of {', '.join(sorted(self.tbt_s))}")
        for name, tbt_s in self.tbt_s.items():
            if tbt_s is not None and not (isfinite(tbt_s) and tbt_s > 0):
                raise ConfigError(f"tbt_s of class {name!r} is {tbt_s}; use seconds > 0")

    def of(self, headers: Iterable[tuple[bytes, bytes]], client: str | None = None) -> str | None:
        """Return the class of a request with these (lower-case) ASGI headers, or None.

        `client`: address of the sender; None: unknown, so no trusted proxy.
        """
        sent = list(headers)
        name = self.api_keys.get(bearer_token(sent))
        if name is None and self.header is not None and self._is_proxy(client):
            names = [value for key, value in sent if key == self.header.lower().encode()]
            # Of two, one may be the client's own, after which the gateway has put its own.
            name = names[0].decode("latin-1") if len(names) == 1 else None
        return name if name in self.tbt_s else self.default

    def has_key(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether the request's key determines its class."""
        return bearer_token(headers) in self.api_keys

    def trusts(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a request with these headers may carry hints of its own."""
        key = bearer_token(headers).encode()
        # Every key is compared, so that the time taken reveals nothing.
        return any([hmac.compare_digest(key, trusted.encode()) for trusted in self.trusted_keys])

    def _is_proxy(self, client: str | None) -> bool:
        try:
            address = ip_address(client or "")
        except ValueError:
            return False
        return any(address in _network(proxy) for proxy in self.trusted_proxies)

    def annotations(self, name: str | None) -> dict[str, Any]:
        """Return the annotations of a request of class `name`."""
        found = {} if name is None else {USER_CLASS: name, TBT_S: self.tbt_s[name]}
        return {key: value for key, value in found.items() if value is not None}


def first_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """Return the first value of a (lower-case) header, as vLLM does; b"" without one."""
    return next((value for key, value in headers if key == name), b"")


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the bearer token of a request; "" without one."""
    scheme, _, token = first_header(headers, b"authorization").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _network(address: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(address, strict=False)
    except ValueError as error:
        raise ConfigError(f"trusted proxy {address!r} is no IP address or network") from error


def read_user_classes(path: Path) -> UserClasses:
    """Read a JSON file as shown at the top of this module.

    Raises ConfigError: no such file, no JSON, an unknown key, or an undefined class.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}); give a class file") from error
    if not isinstance(content, dict) or not isinstance(content.get("classes"), dict):
        raise ConfigError(f'{path} has no "classes"; give an object, name -> {{"tbt_s": seconds}}')
    if unknown := content.keys() - _KEYS:
        raise ConfigError(f"{path} has unknown keys {sorted(unknown)}; use {sorted(_KEYS)}")
    try:
        return UserClasses(
            tbt_s={name: _tbt_s(about) for name, about in content.pop("classes").items()}, **content
        )
    except (ConfigError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _tbt_s(about: Mapping[str, Any]) -> float | None:
    if unknown := about.keys() - {"tbt_s"}:
        raise ConfigError(f"a class has unknown keys {sorted(unknown)}; use tbt_s")
    tbt_s = about.get("tbt_s")
    return None if tbt_s is None else float(tbt_s)
