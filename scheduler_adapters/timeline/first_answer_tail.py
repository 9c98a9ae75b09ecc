"""The tail of the time to the first answering token, by length of reasoning and by user class.

Requests that think long answer late under every policy, so the tail is one per 256 reasoning
tokens. The fewer requests a bin has, the lower its percentile; below five it is left out.

Source: PASCAL's evaluation.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from scheduler_adapters.timeline.qoe import qoe, violation_fraction
from scheduler_adapters.timeline.timeline import Timeline

BIN_TOKENS: Final = 256
LEAST_REQUESTS: Final = 5
_PERCENTS: Final = ((10, 100.0), (20, 90.0), (100, 95.0))
"""Requests below which a bin has this percentile (100: its maximum); else the 99th."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TailBin:
    """The requests of one bin that got an answering token."""

    reasoning_tokens: int
    """The least of the bin."""
    count: int
    percent: float
    first_answer_s: float
    """That percentile of first answering token - arrival."""


def first_answer_tail(timeline: Timeline) -> list[TailBin]:
    """Return the bins with enough requests, by length."""
    first_s = timeline.first_answer_s - timeline.requests.arrival_s
    answers = ~np.isnan(first_s)
    bins = timeline.requests.reasoning_tokens[answers] // BIN_TOKENS
    tail = []
    for number in np.unique(bins).tolist():
        values = first_s[answers][bins == number]
        if len(values) >= LEAST_REQUESTS:
            percent = tail_percent(len(values))
            made = TailBin(
                reasoning_tokens=number * BIN_TOKENS,
                count=len(values),
                percent=percent,
                first_answer_s=float(np.percentile(values, percent)),
            )
            tail.append(made)
    return tail


def tail_percent(count: int) -> float:
    """Return the percentile that stands for the tail of so many values."""
    return next((percent for below, percent in _PERCENTS if count < below), 99.0)


def reading_figures(timeline: Timeline) -> dict[str, Any]:
    """Return the tail and, where there are several user classes, tail and violations of each.

    Empty where nothing is reasoning. Plain lists and dictionaries, for JSON.
    """
    if not timeline.requests.reasoning_tokens.any():
        return {}
    figures: dict[str, Any] = {"first_answer_tail": _plain(first_answer_tail(timeline))}
    user_class = timeline.requests.user_class
    names = np.unique(user_class).tolist()
    if len(names) > 1:
        parts = {name: timeline.take(user_class == name) for name in names}
        figures["by_class"] = {
            name: {
                "qoe_violations": violation_fraction(qoe(part)),
                "first_answer_tail": _plain(first_answer_tail(part)),
            }
            for name, part in parts.items()
        }
    return figures


def _plain(tail: Sequence[TailBin]) -> list[dict[str, Any]]:
    return [asdict(one) for one in tail]
