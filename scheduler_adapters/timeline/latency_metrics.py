"""Latencies of a timeline as means and percentiles, defined in `docs/metrics.md`.

Percentiles interpolate linearly between order statistics. Unfinished requests have no E2E latency,
but their tokens count. A prompt recomputed after reasoning counts as blocked, except for its last
step.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scheduler_adapters.timeline.qoe import qoe, violation_fraction
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Floats, Ints


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistic:
    """Mean and percentiles of `count` values; NaN without values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Metrics of one run. Times are in seconds, rates per second of `makespan_s`."""

    num_requests: int
    num_finished: int
    num_unfinished: int
    num_rejected: int
    num_unscored: int
    """Requests without a predicted length, served in order of arrival."""
    num_preemptions: int
    makespan_s: float
    """Last token - first arrival."""
    output_tokens_per_s: float
    requests_per_s: float
    ttft_s: Statistic
    first_answer_s: Statistic
    ttfat_s: Statistic
    blocking_s: Statistic
    qoe: Statistic
    qoe_violations: float
    tbt_s: Statistic
    tpot_s: Statistic
    e2e_s: Statistic
    queueing_s: Statistic
    normalized_latency_s: Statistic

    def to_dict(self) -> dict[str, Any]:
        """Return plain nested dictionaries."""
        return asdict(self)

    def flat(self) -> dict[str, float]:
        """Return name -> number, e.g. ttft_s.p99."""
        flat: dict[str, float] = {}
        for name, value in self.to_dict().items():
            parts = value.items() if isinstance(value, dict) else ()
            flat |= {f"{name}.{part}": number for part, number in parts} or {name: value}
        return flat


def summarize(timeline: Timeline) -> Summary:
    """Return the metrics of all requests."""
    requests = timeline.requests
    finished = ~np.isnan(timeline.finished_s)
    e2e_s = timeline.e2e_s()[finished]
    gaps_s, gap_counts = token_gaps(timeline)
    num_tokens = int((timeline.runs[:, 2] - timeline.runs[:, 1] + 1).sum())
    last_s = timeline.tick_s[timeline.runs[:, 2]].max(initial=-np.inf)
    makespan_s = max(0.0, float(last_s - requests.arrival_s.min(initial=np.inf)))
    reasoned_s, qoes = timeline.reasoned_s(), qoe(timeline)
    return Summary(
        num_requests=len(requests),
        num_finished=int(finished.sum()),
        num_unfinished=int((~finished & ~timeline.rejected).sum()),
        num_rejected=int(timeline.rejected.sum()),
        num_unscored=int((np.isnan(requests.score) | np.isinf(requests.score_delay_s)).sum()),
        num_preemptions=int(timeline.preemptions.sum()),
        makespan_s=makespan_s,
        output_tokens_per_s=num_tokens / makespan_s if makespan_s else 0.0,
        requests_per_s=int(finished.sum()) / makespan_s if makespan_s else 0.0,
        ttft_s=statistic(timeline.ttft_s()),
        first_answer_s=statistic(timeline.first_answer_s - requests.arrival_s),
        ttfat_s=statistic(timeline.first_answer_s - reasoned_s),
        blocking_s=statistic(timeline.answer_scheduled_s - reasoned_s),
        qoe=statistic(qoes),
        qoe_violations=violation_fraction(qoes),
        tbt_s=statistic(gaps_s, gap_counts),
        tpot_s=statistic(tpot_s(timeline)),
        e2e_s=statistic(e2e_s),
        queueing_s=statistic(timeline.scheduled_s - requests.arrival_s),
        normalized_latency_s=statistic(e2e_s / requests.output_tokens[finished]),
    )


def tpot_s(timeline: Timeline) -> Floats:
    """Return time per output token after the first, per request (N,); NaN below two tokens."""
    gaps = timeline.requests.output_tokens - 1
    span_s = timeline.finished_s - timeline.first_token_s
    return np.where(gaps > 0, span_s / np.maximum(gaps, 1), np.nan)


def token_gaps(timeline: Timeline) -> tuple[Floats, Ints]:
    """Return the gaps (G,) between tokens of a request in seconds, and the count (G,) of each."""
    row, first, last = timeline.runs.T
    # A run over ticks a to b has the gaps before ticks a + 1 to b.
    change = np.zeros(len(timeline.tick_s) + 1, dtype=np.int64)
    np.add.at(change, first + 1, 1)
    np.add.at(change, last + 1, -1)
    shared = np.cumsum(change)[: len(timeline.tick_s)]
    ticks = np.flatnonzero(shared)
    same = row[1:] == row[:-1]
    between_s = timeline.tick_s[first[1:][same]] - timeline.tick_s[last[:-1][same]]
    inside_s = timeline.tick_s[ticks] - timeline.tick_s[ticks - 1]
    counts = np.concatenate([shared[ticks], np.ones(len(between_s), dtype=np.int64)])
    return np.concatenate([inside_s, between_s]), counts


def statistic(values: Floats, counts: Ints | None = None) -> Statistic:
    """Return mean and percentiles of `values`, each `counts` times; NaN is left out."""
    keep = ~np.isnan(values)
    values = values[keep]
    counts = np.ones(len(values), dtype=np.int64) if counts is None else counts[keep]
    order = np.argsort(values)
    values, counts = values[order], counts[order]
    total = int(counts.sum())
    if total == 0:
        return Statistic(count=0, mean=np.nan, p50=np.nan, p90=np.nan, p99=np.nan)
    last_rank = np.cumsum(counts) - 1
    position = np.array((50, 90, 99)) / 100 * last_rank[-1]
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, last_rank[-1])
    low, high = (values[np.searchsorted(last_rank, rank)] for rank in (below, above))
    p50, p90, p99 = (low + (high - low) * (position - below)).tolist()
    mean = float((values * counts).sum() / total)
    return Statistic(count=total, mean=mean, p50=p50, p90=p90, p99=p99)
