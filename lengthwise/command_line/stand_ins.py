"""Stand-ins for libraries that are not installed, while the options of a command are read."""

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

PACKAGES: Final = ("training", "scoring_service", "scheduler_adapters")


def is_ours(module: str | None) -> bool:
    """Return whether a module belongs to this distribution."""
    return module is not None and module.partition(".")[0] in ("lengthwise", *PACKAGES)


@contextmanager
def absent_libraries_stood_in() -> Iterator[None]:
    """Context in which our modules import stand-ins for libraries that are not installed.

    Options need no library. The modules keep the stand-ins: the process should only print and end.
    """
    real: Any = builtins.__import__

    def imported(name: str, scope: Any = None, *others: Any, **named: Any) -> Any:
        try:
            return real(name, scope, *others, **named)
        except ImportError as error:
            if is_ours(error.name) or not is_ours((scope or {}).get("__name__")):
                raise
            return _stand_in()

    builtins.__import__ = imported  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.__import__ = real


def _stand_in() -> Any:
    from unittest.mock import MagicMock

    class StandIn(MagicMock):
        def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
            return ()  # a class may derive from it

    return StandIn()
