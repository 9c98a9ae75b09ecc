"""The tail of the time to the first answering token, by length of reasoning and by user class.

Requests with long reasoning answer late under every policy. So each bin of reasoning tokens has a
tail of its own: a percentile that is lower the fewer requests the bin has.

Source: PASCAL's evaluation.
"""

from typing import Any, Final

import numpy as np

from scheduler_adapters.timeline.qoe import qoe, violation_fraction
from scheduler_adapters.timeline.timeline import Timeline

BIN_TOKENS: Final = 256
LEAST_REQUESTS: Final = 5
_PERCENTS: Final = ((10, 100.0), (20, 90.0), (100, 95.0))
"""(number of requests, percentile of a bin with fewer); the 99th for all larger bins."""


def first_answer_tail(timeline: Timeline) -> list[dict[str, Any]]:
    """Return the bins with at least `LEAST_REQUESTS` answering requests, by length."""
    first_s = timeline.first_answer_s - timeline.requests.arrival_s
    answers = ~np.isnan(first_s)
    bins = timeline.requests.reasoning_tokens[answers] // BIN_TOKENS
    numbers, counts = np.unique(bins, return_counts=True)
    return [
        {
            "reasoning_tokens": number * BIN_TOKENS,
            "count": count,
            "percent": (percent := tail_percent(count)),
            "first_answer_s": float(np.percentile(first_s[answers][bins == number], percent)),
        }
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        if count >= LEAST_REQUESTS
    ]


def tail_percent(count: int) -> float:
    """Return the percentile that represents the tail of `count` values."""
    return next((percent for below, percent in _PERCENTS if count < below), 99.0)


def reading_figures(timeline: Timeline) -> dict[str, Any]:
    """Return the tail and, for several user classes, tail and QoE violations of each class.

    The result is empty without reasoning, and can be written as JSON.
    """
    if not timeline.requests.reasoning_tokens.any():
        return {}
    figures: dict[str, Any] = {"first_answer_tail": first_answer_tail(timeline)}
    user_class = timeline.requests.user_class
    names = np.unique(user_class).tolist()
    if len(names) > 1:
        parts = {name: timeline.take(user_class == name) for name in names}
        figures["by_class"] = {
            name: {
                "qoe_violations": violation_fraction(qoe(part)),
                "first_answer_tail": first_answer_tail(part),
            }
            for name, part in parts.items()
        }
    return figures
