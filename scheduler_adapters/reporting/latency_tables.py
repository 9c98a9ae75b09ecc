"""Tables of runs, for figures and CSV files: latencies and capacity."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from scheduler_adapters.timeline.latency_metrics import Summary, statistic, token_gaps
from scheduler_adapters.timeline.timeline import Timeline

Weighted = ArrayLike | tuple[ArrayLike, ArrayLike]
"""Values, or values with the number of occurrences of each."""
_POINTS: Final = 400
_NO_EFFECT: Final = 0.02
_COUNTS: Final = (
    *("num_finished", "num_unfinished", "num_rejected", "num_unscored", "num_preemptions"),
    "output_tokens_per_s",
)
_METRICS: Final = ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s", "tbt_s", "queueing_s")
_READING_METRICS: Final = ("first_answer_s", "ttfat_s", "blocking_s")
"""Metrics of workloads with reasoning."""


@dataclass(frozen=True)
class Outcome:
    """One run of a comparison."""

    policy: str
    rate_per_s: float | None
    timeline: Timeline
    summary: Summary
    placement: str | None = None
    """None: a single instance."""
    past_lower_score_fraction: float = np.nan
    """Share of requests admitted while a lower score waited."""

    @property
    def system(self) -> str:
        """Policy and placement, for readers."""
        return system_name(self.policy, self.placement)

    @property
    def name(self) -> str:
        """Name of the run's files."""
        placement = "" if self.placement is None else f"_{self.placement}"
        rate = "" if self.rate_per_s is None else f"_q{self.rate_per_s:g}"
        return re.sub(r"[^\w.-]", "_", self.policy + placement) + rate

    def row(self) -> dict[str, Any]:
        """The run as one flat record."""
        placement = {} if self.placement is None else {"placement": self.placement}
        row: dict[str, Any] = {"policy": self.policy, **placement, "rate_per_s": self.rate_per_s}
        figures = self.summary.flat()
        row |= {name: figures[name] for name in _COUNTS}
        reasons = self.timeline.requests.reasoning_tokens.any()
        row |= {
            f"{metric.removesuffix('_s')}_{name}_s": figures[f"{metric}.{name}"]
            for metric in _METRICS + (_READING_METRICS if reasons else ())
            for name in ("mean", "p50", "p90", "p99")
        }
        reading = {"qoe_mean": "qoe.mean", "qoe_p50": "qoe.p50", "qoe_violations": "qoe_violations"}
        row |= {name: figures[figure] for name, figure in reading.items() if reasons}
        wait_s = self.timeline.scheduled_s - self.timeline.requests.arrival_s
        row |= {"longest_wait_s": float(np.nanmax(wait_s, initial=0.0))}
        row |= {"past_lower_score_fraction": self.past_lower_score_fraction}
        return row | _tbt_by_class(self.timeline)


def system_name(policy: str, placement: str | None) -> str:
    """Return the name of a policy and, on many instances, a placement."""
    return policy if placement is None else f"{policy} with {placement}"


COLUMNS: Final = {
    "policy": "policy",
    "placement": "placement",
    "rate_per_s": "req/s",
    "e2e_mean_s": "E2E mean s",
    "e2e_p50_s": "E2E p50 s",
    "e2e_p99_s": "E2E p99 s",
    "normalized_latency_mean_s": "E2E/token mean s",
    "normalized_latency_p90_s": "E2E/token p90 s",
    "ttft_p50_s": "TTFT p50 s",
    "ttft_p99_s": "TTFT p99 s",
    "tbt_p99_s": "TBT p99 s",
    "tpot_mean_s": "TPOT mean s",
    "longest_wait_s": "longest wait s",
    "past_lower_score_fraction": "past lower score",
    "num_preemptions": "preemptions",
}
"""Fields of a row in a printed table, and their headings."""
_READING_COLUMNS: Final = {
    "first_answer_p99_s": "first answer p99 s",
    "blocking_p99_s": "blocking p99 s",
    "qoe_violations": "QoE < .95",
}


def run_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return the runs as rows of a printed table, with its headings."""
    rows = pd.DataFrame([outcome.row() for outcome in outcomes])
    columns = COLUMNS | (_READING_COLUMNS if "qoe_violations" in rows else {})
    return rows[[name for name in columns if name in rows]].rename(columns=columns)


def effect_text(outcomes: Sequence[Outcome]) -> str:
    """Return the change of each policy against FCFS (or the first one), at the highest rate."""
    highest = max((o.rate_per_s or 0.0 for o in outcomes), default=0.0)
    shown = [outcome for outcome in outcomes if (outcome.rate_per_s or 0.0) == highest]
    base = next((o for o in shown if o.policy == "fcfs"), shown[0])
    return "\n".join(_effect(outcome, base) for outcome in shown if outcome is not base)


def _effect(outcome: Outcome, base: Outcome) -> str:
    ours, theirs = outcome.summary.e2e_s, base.summary.e2e_s
    mean, p99 = ours.mean / theirs.mean - 1, ours.p99 / theirs.p99 - 1
    queueing = base.summary.queueing_s.mean / theirs.mean
    is_idle = abs(mean) < _NO_EFFECT and queueing < _NO_EFFECT
    why = ": there is hardly a queue, so neither matters much" if is_idle else ""
    rate = "" if base.rate_per_s is None else f" at {base.rate_per_s:g} req/s"
    change = f"mean E2E {mean:+z.0%}, p99 {p99:+z.0%}"
    return f"{outcome.system} against {base.system}{rate}: {change}{why}."


def _tbt_by_class(timeline: Timeline) -> dict[str, float]:
    """P99 of the time between tokens of each user class, where there are several."""
    user_class = timeline.requests.user_class
    classes = np.unique(user_class)
    if len(classes) < 2:
        return {}
    return {
        f"tbt_p99_s_{name}": statistic(*token_gaps(timeline.take(user_class == name))).p99
        for name in classes
    }


def latency_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return the ECDF table of TTFT, TBT and E2E of each run; rejected requests are left out."""
    panels: dict[str, dict[str, Weighted]] = {"TTFT": {}, "TBT": {}, "E2E": {}}
    for outcome in outcomes:
        timeline = outcome.timeline.take(~outcome.timeline.rejected)
        panels["TTFT"][outcome.system] = timeline.ttft_s()
        panels["TBT"][outcome.system] = token_gaps(timeline)
        panels["E2E"][outcome.system] = timeline.e2e_s()
    return ecdf_table(panels)


def ecdf_table(panels: Mapping[str, Mapping[str, Weighted]]) -> pd.DataFrame:
    """Return columns panel, policy, value, share: the share of values at or below each one.

    NaN is above all other values: the curve of a policy with unfinished requests ends below 1.
    """
    tables = []
    for panel, series in panels.items():
        for policy, given in series.items():
            values, counts = given if isinstance(given, tuple) else (given, 1.0)
            tables.append(_ecdf(values, counts).assign(panel=panel, policy=policy))
    return pd.concat(tables)[["panel", "policy", "value", "share"]]


def _ecdf(values: ArrayLike, counts: ArrayLike) -> pd.DataFrame:
    x = np.asarray(values, dtype=float)
    order = np.argsort(x)
    counts = np.broadcast_to(np.asarray(counts, dtype=float), x.shape)
    share = np.cumsum(counts[order]) / max(counts.sum(), 1)
    happened = ~np.isnan(x[order])
    table = pd.DataFrame({"value": x[order][happened], "share": share[happened]})
    # More points than pixels only make the file larger.
    keep = np.unique(np.searchsorted(table["share"], np.linspace(0, 1, _POINTS)))
    return table.iloc[keep[keep < len(table)]]


def rate_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Columns metric, policy, rate_per_s, p50, p99 (seconds)."""
    metrics = {"TTFT": "ttft_s", "TBT": "tbt_s", "E2E / output tokens": "normalized_latency_s"}
    rows = [
        (label, one.system, one.rate_per_s, values.p50, values.p99)
        for label, name in metrics.items()
        for one in outcomes
        for values in [getattr(one.summary, name)]
    ]
    return pd.DataFrame(rows, columns=["metric", "policy", "rate_per_s", "p50", "p99"])


def capacity_table(found: Mapping[str, list[float]]) -> pd.DataFrame:
    """Columns policy, mean, low, high (the 95% interval), searches."""
    rows = [
        (policy, float(np.mean(values)), *interval(values), len(values))
        for policy, values in found.items()
    ]
    return pd.DataFrame(rows, columns=["policy", "mean", "low", "high", "searches"])


def text_of(table: pd.DataFrame) -> str:
    """Return a table for a terminal, numbers with four significant digits."""
    return str(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))


def with_interval(values: Sequence[float], form: str, ends: str | None = None) -> str:
    """Return the mean with its 95% interval, as "mean [low, high]"; `ends` is the form of these."""
    low, high = ((ends or form).format(end) for end in interval(values))
    return f"{form.format(float(np.mean(values)))} [{low}, {high}]"


def interval(values: Sequence[float], *, of_next: bool = False) -> tuple[float, float]:
    """Return the 95% interval of the mean, or of a further value; a single value has no width."""
    mean, count = float(np.mean(values)), len(values)
    if count == 1:
        return mean, mean
    from scipy.special import stdtrit  # imported late: a third of a second

    half = float(stdtrit(count - 1, 0.975)) * float(np.std(values, ddof=1))  # Student's t
    half = half * (1 + 1 / count) ** 0.5 if of_next else half / count**0.5
    return mean - half, mean + half
