"""Settings with their ranges in their types, checked at construction.

    @settings
    class Limits:
        batch: Count = 32                                      # a whole number, 1 or more
        rate_per_s: PositiveFinite | None = None               # None needs no check
        share: Annotated[float, Range(least=0, below=1)] = 0   # a range of its own
        order: Literal["spf", "fcfs"] = "spf"                  # one of these words

A class of settings takes `@settings` in place of `@dataclass`, as do its subclasses; any other
function, such as the `__init__` of a policy, takes `@checked`. Only relations between settings
stay in `__post_init__`, which runs after this check. The command line shows the plain types.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, wraps
from inspect import signature
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from lengthwise.errors import require

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Range:
    """Right values of a number: `least` and `most` belong to them, `above` and `below` do not."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: Any) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f" from {self.least:g} to {self.most:g}"
        bounds = {"above": self.above, "below": None if self.below == inf else self.below}
        words = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
        if self.least is not None:
            words.insert(0, f"{self.least:g} or more")
        return (" " if self.least is None else ", ") + " and ".join(words)


Count = Annotated[int, Range(least=1)]
Natural = Annotated[int, Range(least=0)]
Port = Annotated[int, Range(least=1, most=65535)]
Positive = Annotated[float, Range(above=0)]
PositiveFinite = Annotated[float, Range(above=0, below=inf)]
NonNegative = Annotated[float, Range(least=0)]
NonNegativeFinite = Annotated[float, Range(least=0, below=inf)]
Fraction = Annotated[float, Range(least=0, most=1)]
Part = Annotated[float, Range(least=0, below=1)]
"""A fraction, and never the whole."""
_KINDS: Final[dict[type, tuple[type, str]]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


def _faults(hint: Any, value: Any) -> Iterator[tuple[Any, str]]:
    """Yield each part of a value that its type refuses, with the right values of that part."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, words = _KINDS[parts[0]]
        for limits in parts[1:]:
            if not isinstance(value, kind) or value not in limits:
                yield value, f"{words}{limits}"
    elif origin is Literal:
        if value not in parts:
            yield value, f"one of {', '.join(map(str, parts))}"
    elif origin in (Union, UnionType):
        kinds = [part for part in parts if part is not NoneType]
        if len(kinds) == 1 and value is not None:
            yield from _faults(kinds[0], value)
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        for item in value:
            yield from _faults(parts[0], item)


def checked(
    function: Callable[Parameters, Value], section: str = ""
) -> Callable[Parameters, Value]:
    """Decorator: arguments outside the ranges of their types raise ConfigError.

    Args:
        function: its types are resolved at the first call.
        section: stands before the names in messages.
    """
    hints = cache(lambda: get_type_hints(function, include_extras=True))
    names = list(signature(function).parameters)

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        for name, value in {**dict(zip(names, args, strict=False)), **kwargs}.items():
            for wrong, right in _faults(hints().get(name), value):
                require(f"{section}{name}", repr(wrong), False, right)
        return function(*args, **kwargs)

    return call


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def settings(kind: type[Value]) -> type[Value]:
    """Decorator: a frozen dataclass of keywords whose constructor is `checked`.

    A class variable `section`, such as "data.", stands before the names in messages.
    """
    made: Any = dataclass(frozen=True, kw_only=True)(kind)
    made.__init__ = checked(made.__init__, getattr(kind, "section", ""))
    checked_kind: type[Value] = made
    return checked_kind
