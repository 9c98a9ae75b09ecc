"""Which class of user a request belongs to, by its API key or by a header that a gateway sets.

    {"classes": {"chat": {"tbt_s": 0.05}, "batch": {}},
     "api_keys": {"sk-3f9c": "chat"}, "header": "X-User-Class", "default": "batch"}

A class may have a target time between tokens, in seconds. The key is asked first, then the header,
then `default`; a class that is not in `classes` counts as none. Imports no engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

from scheduler_adapters.planner.hints import TBT_S, USER_CLASS
from scoring_service.errors import ConfigError

_KEYS: Final = frozenset({"classes", "api_keys", "header", "default"})


@dataclass(frozen=True, kw_only=True, slots=True)
class UserClasses:
    """The classes, and how a request is known to be of one."""

    tbt_s: Mapping[str, float | None] = field(default_factory=dict)
    """Class -> target time between tokens in seconds, None where it has none."""
    api_keys: Mapping[str, str] = field(default_factory=dict)
    """Bearer token -> class."""
    header: str | None = None
    """Name of a header that holds the class; for gateways, since clients can set it too."""
    default: str | None = None
    """Class of all others; None: they have none."""

    def __post_init__(self) -> None:
        for name in [*self.api_keys.values(), *([self.default] if self.default else [])]:
            if name not in self.tbt_s:
                raise ConfigError(f"no class {name!r}; use one of {', '.join(sorted(self.tbt_s))}")
        for name, tbt_s in self.tbt_s.items():
            if tbt_s is not None and not (isfinite(tbt_s) and tbt_s > 0):
                raise ConfigError(f"tbt_s of class {name!r} is {tbt_s}; use seconds > 0")

    def of(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """The class of a request with these (lower-case) ASGI headers; None where it has none."""
        sent = dict(headers)
        scheme, _, token = sent.get(b"authorization", b"").decode("latin-1").partition(" ")
        by_key = self.api_keys.get(token.strip()) if scheme.lower() == "bearer" else None
        name = by_key or sent.get((self.header or "").lower().encode(), b"").decode("latin-1")
        return name if name in self.tbt_s else self.default

    def hints(self, name: str | None) -> dict[str, str | float]:
        """What a request of class `name` carries to the scheduler."""
        if name is None:
            return {}
        tbt_s = self.tbt_s[name]
        return {USER_CLASS: name} | ({} if tbt_s is None else {TBT_S: tbt_s})


def read_user_classes(path: Path) -> UserClasses:
    """Read the JSON file that the top of this module shows.

    Raises:
        ConfigError: no such file, no JSON, an unknown key, or a class that is not there.
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


class ClassesInFlight:
    """The class of each request that is being served, by the id that vLLM reports it under."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}

    def enter(self, request_id: str, name: str) -> None:
        """A request of class `name` goes to the server with this X-Request-Id."""
        self._classes[request_id] = name

    def leave(self, request_id: str) -> None:
        """Forget it; one that is not here is ignored."""
        self._classes.pop(request_id, None)

    def of(self, reported_id: str | None) -> str:
        """The class behind `cmpl-ID-0`, `chatcmpl-ID` or `resp_ID_0`; "" where none is known."""
        reported_id = reported_id or ""
        sent_id = reported_id.partition("-")[2]
        candidates = (sent_id, sent_id.rpartition("-")[0], reported_id.rpartition("_")[0])
        return next((self._classes[one] for one in candidates if one in self._classes), "")

    def __len__(self) -> int:
        return len(self._classes)


CLASSES_IN_FLIGHT: Final = ClassesInFlight()
"""Of this API server process: the middleware writes it, the stat logger reads it."""
