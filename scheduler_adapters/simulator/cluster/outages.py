"""Failures of instances.

An instance fails at the end of the step under way, whose tokens are still emitted. Nothing is
placed there from its failure on. A request in it, or in transfer from or to it, loses its KV, keeps
its tokens, and is placed again in order of arrival.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from lengthwise.errors import ConfigError, require
from lengthwise.settings import Natural, NonNegativeFinite, settings


@settings
class Outage:
    """Time in which an instance is dead."""

    instance: Natural
    at_s: NonNegativeFinite
    until_s: float = inf

    def __post_init__(self) -> None:
        require("until_s", self.until_s, self.until_s > self.at_s, f"a time after {self.at_s}")


def in_order(outages: Sequence[Outage], num_instances: int) -> list[Outage]:
    """Return the outages by instance and time.

    Raises ConfigError: one is of another instance, or two of one instance overlap.
    """
    ordered = sorted(outages, key=lambda one: (one.instance, one.at_s))
    for one in ordered:
        if one.instance >= num_instances:
            raise ConfigError(f"{one} of {num_instances} instances; name one of them")
    for before, one in pairwise(ordered):
        if one.instance == before.instance and one.at_s < before.until_s:
            raise ConfigError(f"{one} begins during {before}; let one end before the other")
    return ordered
