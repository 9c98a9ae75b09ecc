"""Search for the highest load at which a condition holds."""

from collections.abc import Callable
from typing import Final

MOST_PER_S: Final = 10_000.0
"""Upper end of a search by rate: here all requests arrive at about the same time."""


def highest_load(
    meets: Callable[[float], bool],
    *,
    low: float,
    high: float,
    tolerance: float,
    grows: bool = False,
    most: float = MOST_PER_S,
    whole: bool = False,
) -> float:
    """Return the highest load for which `meets` holds, by bisection between `low` and `high`.

    Args:
        tolerance: relative width at which the search ends.
        grows: double `high` until it fails, up to `most`.
        whole: try whole numbers only.

    Returns:
        0 where `low` fails, and the upper end where `meets` holds there.
    """
    if not meets(low):
        return 0.0
    while grows and high < most and meets(high):
        low, high = high, min(2 * high, most)
    if (not grows or high == most) and meets(high):
        return high
    while high - low > max(tolerance * high, 1 if whole else 0):
        middle = (low + high) // 2 if whole else (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low
