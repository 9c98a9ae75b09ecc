"""Latency targets: metrics of a run and their limits, of all requests or of one user class.

targets = {"ttft_s.p99": 1.0, "tbt_s.p99.paying": 0.1}
check_targets(targets)
is_met(targets, timeline)
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Final

from lengthwise.errors import ConfigError, require
from scheduler_adapters.timeline.latency_metrics import Statistic, Summary, summarize
from scheduler_adapters.timeline.timeline import Timeline

_METRICS: Final = [
    column.name for column in fields(Summary) if column.type is Statistic and column.name != "qoe"
]
_SHARE: Final = "qoe_violations"
"""Target without a statistic: a share of the requests."""
_TARGET: Final = re.compile(
    rf"({_SHARE}|(?:{'|'.join(_METRICS)})\.(?:mean|p50|p90|p99))(?:\.(.+))?"
)
"""Metric and statistic, and a user class."""


def target_parts(name: str) -> tuple[str, str]:
    """Return metric and statistic of a target, and its user class; empty: all requests."""
    if (found := _TARGET.fullmatch(name)) is None:
        raise ConfigError(
            f"slo names {name!r}; use one of {', '.join(_METRICS)} with .mean, .p50, .p90 "
            f"or .p99, or {_SHARE}, and .CLASS behind it for one user class"
        )
    return found[1], found[2] or ""


def check_targets(slo: Mapping[str, float]) -> None:
    """Refuse targets of unknown metrics, and values outside their range."""
    for name, most in slo.items():
        if target_parts(name)[0] == _SHARE:
            require(f"slo {name}", most, 0 <= most < 1, "a share in [0, 1)")
        else:
            require(f"slo {name}", most, most > 0, "seconds above 0")


def is_met(slo: Mapping[str, float], timeline: Timeline) -> bool:
    """Return True if all requests finished within the targets."""
    summaries = {"": summarize(timeline)}
    for name, most in slo.items():
        metric, user_class = target_parts(name)
        if user_class not in summaries:
            own = timeline.take(timeline.requests.user_class == user_class)
            summaries[user_class] = summarize(own)
        if not attrgetter(metric)(summaries[user_class]) <= most:  # NaN: not one value
            return False
    return summaries[""].num_unfinished == 0


def targets_text(slo: Mapping[str, float]) -> str:
    """Return the targets as a phrase, without units for shares."""
    return ", ".join(
        f"{name} <= {most:g}{'' if name.startswith(_SHARE) else ' s'}" for name, most in slo.items()
    )
