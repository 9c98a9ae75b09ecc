"""Stand-ins for libraries that are not installed, while the options of a command are read.

The module of a command imports its libraries at its top, and its options need none of them.
"""

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

PACKAGES: Final = ("training", "scoring_service", "scheduler_adapters")


def is_ours(module: str | None) -> bool:
    """Return whether a module belongs to one of the packages of this distribution."""
    return module is not None and module.partition(".")[0] in ("lengthwise", *PACKAGES)


@contextmanager
def absent_libraries_stood_in() -> Iterator[None]:
    """Context in which our modules get stand-ins for libraries that are not installed.

    The modules keep them: only a process that prints and ends may use this.
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
    """Return an object whose names are modules, types, decorators and classes to derive from."""
    from unittest.mock import MagicMock

    class StandIn(MagicMock):
        def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
            return ()

    return StandIn()
