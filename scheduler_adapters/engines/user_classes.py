"""Classes of users, identified by API key or by a header that a gateway sets.

    {"classes": {"chat": {"tbt_s": 0.05}, "batch": {}},
     "api_keys": {"sk-3f9c": "chat"}, "header": "X-User-Class", "trusted_proxies": ["10.0.0.0/8"],
     "default": "batch", "trusted_keys": ["sk-gate"]}

A class may have a target time between tokens, in seconds. The key decides first, then the header
of a trusted proxy, then `default`; a class that is not in `classes` does not count. Requests with a
trusted key may carry hints of their own. A client's address is that of its connection; behind a
trusted proxy it is the last other hop of X-Forwarded-For. Imports no engine.
"""

import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from math import inf
from pathlib import Path
from typing import Any, Final

from lengthwise.errors import ConfigError, raised_as, require
from scheduler_adapters.planner.request_annotations import TBT_S, USER_CLASS

_FORMS: Final[Mapping[str, tuple[type, str]]] = {
    "classes": (dict, 'an object with different keys, {"chat": {"tbt_s": 0.05}}'),
    "api_keys": (dict, 'an object with different keys, {"sk-3f9c": "chat"}'),
    "header": (str, 'the name of a header, "X-User-Class"'),
    "trusted_proxies": (list, 'a list of addresses and networks, ["10.0.0.0/8"]'),
    "default": (str, 'the name of a class, "chat"'),
    "trusted_keys": (list, 'a list of keys, ["sk-gate"]'),
}
_LISTS: Final = ("api_keys", "trusted_proxies", "trusted_keys")
_PORT: Final = re.compile(r"^([\d.]+):\d+$|^\[(.*)\](?::\d+)?$")
_TEXT: Final = re.compile("[!-~](?:[ -~]*[!-~])?")
_HEADER_NAME: Final = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
Headers = Iterable[tuple[bytes, bytes]]


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
        texts: dict[str, Iterable[object]] = {name: getattr(self, name) for name in _LISTS}
        texts |= {"classes": self.tbt_s, "header": [] if self.header is None else [self.header]}
        for where, found in texts.items():
            pattern = _HEADER_NAME if where == "header" else _TEXT
            for number, text in enumerate(found, 1):
                if not isinstance(text, str) or not pattern.fullmatch(text):  # keys are not shown
                    reason = f"entry {number} of {where} is no text of visible ASCII"
                    raise ConfigError(f"{reason}; use {_FORMS[where][1]}")
        if self.header is not None and not self.trusted_proxies:
            raise ConfigError(
                f"header {self.header!r} could be sent by any client; name the gateways that set "
                'it, "trusted_proxies": ["10.0.0.1"]'
            )
        for address in self.trusted_proxies:
            _network(address)
        for name in [*self.api_keys.values(), *([] if self.default is None else [self.default])]:
            if not isinstance(name, str) or name not in self.tbt_s:
                raise ConfigError(f"no class {name!r}; use one of {', '.join(sorted(self.tbt_s))}")
        for name, tbt_s in self.tbt_s.items():
            is_right = tbt_s is None or (type(tbt_s) in (int, float) and 0 < tbt_s < inf)
            require(f"tbt_s of class {name!r}", tbt_s, is_right, "seconds > 0")

    def of(self, token: str, headers: Headers = (), peer: str | None = None) -> str | None:
        """Return the class of a request with this bearer token, or None.

        `headers` are ASGI's, in lower case. `peer`: address of the connection; None: not trusted.
        """
        name = self.api_keys.get(token)
        if name is None and self.header is not None and self._is_proxy(peer):
            names = [value for key, value in headers if key == self.header.lower().encode()]
            # Of two, one may be the client's own, after which the gateway has put its own.
            name = names[0].decode("latin-1") if len(names) == 1 else None
        return name if name in self.tbt_s else self.default

    def trusts(self, token: str) -> bool:
        """Return whether a request with this bearer token may carry hints of its own."""
        key = token.encode()
        # Every key is compared, so that the time taken reveals nothing.
        return any([hmac.compare_digest(key, trusted.encode()) for trusted in self.trusted_keys])

    def client_address(self, headers: Headers, peer: str | None) -> str | None:
        """Return the address of the client at or, of a trusted proxy, behind a connection."""
        forwarded = [value for key, value in headers if key == b"x-forwarded-for"]
        for hop in reversed(b",".join(forwarded).decode("latin-1").split(",")):
            if not self._is_proxy(peer):
                break
            if (address := address_of(_PORT.sub(r"\1\2", hop.strip()))) is None:
                break
            peer = str(address)
        return peer

    def _is_proxy(self, peer: str | None) -> bool:
        address = address_of(peer) if self.trusted_proxies else None
        return address is not None and any(address in _network(one) for one in self.trusted_proxies)

    def annotations(self, name: str | None) -> dict[str, Any]:
        """Return the annotations of a request of class `name`."""
        found = {} if name is None else {USER_CLASS: name, TBT_S: self.tbt_s[name]}
        return {key: value for key, value in found.items() if value is not None}


def bearer_token(authorization: bytes) -> str:
    """Return the bearer token in a header; "" without one."""
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def address_of(text: str | None) -> IPv4Address | IPv6Address | None:
    """Return an IP address, IPv4 also if it is mapped into IPv6; None for other text."""
    try:
        found = ip_address((text or "").strip())
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


@cache
def _network(address: str) -> IPv4Network | IPv6Network:
    try:
        if (found := ip_network(address)).prefixlen:
            return found
        reason = "everybody's"
    except ValueError as error:
        reason = f"no IP address or network ({error})"
    raise ConfigError(f"trusted proxy {address!r} is {reason}; use 10.0.0.1 or 10.0.0.0/8")


def read_user_classes(path: Path) -> UserClasses:
    """Read a JSON file as shown at the top of this module.

    Raises ConfigError: no such file, no JSON, an unknown or wrong field, or an undefined class.
    """
    why = f"{path} cannot be read as JSON ({{}}); give a class file"
    with raised_as(ConfigError, why, OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(), object_pairs_hook=_object)
    if not isinstance(content, dict) or "classes" not in content:
        raise ConfigError(f'{path} has no "classes", or a field twice; use {_FORMS["classes"][1]}')
    if unknown := content.keys() - _FORMS.keys():
        raise ConfigError(f"{path} has unknown keys {sorted(unknown)}; use {sorted(_FORMS)}")
    try:
        for name, value in content.items():
            if type(value) is not _FORMS[name][0]:
                raise ConfigError(f"{name} is of a wrong form; use {_FORMS[name][1]}")
        tbt_s = {name: _tbt_s(name, about) for name, about in content.pop("classes").items()}
        return UserClasses(tbt_s=tbt_s, **content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any] | None:
    """Return an object; None, which is right nowhere, for one with a key twice."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else None


def _tbt_s(name: str, about: Any) -> float | None:
    if isinstance(about, dict) and about.keys() <= {"tbt_s"} and about != {"tbt_s": None}:
        return about.get("tbt_s")
    raise ConfigError(f'class {name!r} is of a wrong form; use {{"tbt_s": seconds}}, or {{}}')
