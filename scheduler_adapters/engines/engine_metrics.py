"""Live metrics of a vLLM scheduler's decisions and its users' latencies, and their observers.

A scheduler lives in the engine process, /metrics in the API server's. The middleware there reads
the engine's report, with its load for a router, through the folder in `LENGTHWISE_FOLDER`, if set.
`LENGTHWISE_TIMELINE` names the timeline file. Imports no engine.
"""

import logging
import os
import time
from bisect import bisect_left
from collections import Counter as Tally, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
    values,
)

from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER, EngineSocket, report_server
from scheduler_adapters.engines.score_order import ScoreOrder
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policy import Policy, PolicyWrapper
from scheduler_adapters.timeline.live_log import VARIABLE, TimelineLog
from scheduler_adapters.timeline.observer import EngineObserver, LaterEvents
from scheduler_adapters.timeline.token_clock import TBT_BUCKETS_S, TokenClock
from scheduler_adapters.views import Phase

log = logging.getLogger(__name__)

EVERY_S, STEP_WITHIN_S = 0.25, 0.5
"""Least time between two exports of a busy engine, longest wait of a reader for a step's end."""
_MOST_UNREAD: Final = 8192  # latencies kept without an export
_ANSWERS: Final = {"buckets": (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)}
_LATENCIES: Final = {"buckets": (0.01, 0.025, *_ANSWERS["buckets"])}
_GAPS: Final = {"buckets": TBT_BUCKETS_S}
_QOE: Final = {"buckets": (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)}
_BY_SCORE: Final = "Requests by their score when they started, and by reasons: docs/metrics.md."
_PAST_LOWER: Final = "First admissions while a lower score waited: with PARS, by its guard."
_CLASS: Final = ("user_class",)
_PHASE_AND_CLASS: Final = ("phase", "user_class")
_RANKER: Final = ("engine", "revision")

_OF_RANKER: Final[dict[str, tuple[type, str, Sequence[str], Mapping[str, Any]]]] = {
    "rank_answers": (Gauge, "Answers in the figures of the ranker.", (*_RANKER, "of"), {}),
    "rank_tau_b": (Gauge, "Scores against lengths, and its interval.", (*_RANKER, "end"), {}),
    "rank_over_prompt": (Gauge, "tau_b less that of prompts' lengths.", (*_RANKER, "end"), {}),
    "rank_coverage": (Gauge, "Share of lengths up to a quantile.", (*_RANKER, "quantile"), {}),
    "rank_alarm": (Gauge, "1: answers break the ranker's promise.", (*_RANKER, "about"), {}),
    "arrival_order": (Gauge, "1: arrival orders, not scores.", (*_RANKER, "reason"), {}),
}
_METRICS: Final = _OF_RANKER | {
    "bundle_reloads": (Counter, "New bundles of a ranker, loaded or refused.", ("outcome",), {}),
    "engine_requests": (Counter, _BY_SCORE, ("hint",), {}),
    "expired_ranks": (Counter, "Ranks that ended in time, such as starving requests.", (), {}),
    "admissions_past_lower_score": (Counter, _PAST_LOWER, (), {}),
    "deferrals": (Counter, "Running requests left out of a step, summed over steps.", (), {}),
    "preemptions": (Counter, "Preemptions of finished requests.", _CLASS, {}),
    "telemetry_dropped": (Counter, "Requests that the timeline lacks: not written.", (), {}),
    "resident_requests": (Gauge, "Requests that hold KV blocks.", _PHASE_AND_CLASS, {}),
    "resident_tokens": (Gauge, "Tokens in KV blocks.", _PHASE_AND_CLASS, {}),
    "pacers": (Gauge, "Answers by pacer: ahead of the reader, or empty.", ("state",), {}),
    "paced_tokens": (Gauge, "Generated tokens that readers have not reached yet.", (), {}),
    "kv_usage_fraction": (Gauge, "Used KV blocks / all KV blocks.", ("engine",), {}),
    "tbt_seconds": (Histogram, "Gaps between consecutive tokens.", _PHASE_AND_CLASS, _GAPS),
    "ttft_seconds": (Histogram, "First output token - arrival.", _CLASS, _LATENCIES),
    "e2e_seconds": (Histogram, "Last output token - arrival.", _CLASS, _LATENCIES),
    "queueing_seconds": (Histogram, "First scheduled - queued in the engine.", _CLASS, _LATENCIES),
    "tpot_seconds": (Histogram, "Mean gap between a request's output tokens.", _CLASS, _GAPS),
    "first_answer_seconds": (Histogram, "First answering token - arrival.", _CLASS, _ANSWERS),
    "ttfat_seconds": (Histogram, "First answering token - end of reasoning.", _CLASS, _ANSWERS),
    "qoe": (Histogram, "QoE of finished requests; 1: a stream without stalls.", _CLASS, _QOE),
}
"""Name without `lengthwise_` -> kind, description, labels and further arguments."""


def observers_from_environment(scheduler: Any, *, thinks: bool) -> list[EngineObserver]:
    """Return the observers of a scheduler that the environment variables name, if any.

    `thinks`: True if the tokens that end thinking are configured. Raises ConfigError: the timeline
    cannot be written.
    """
    number = scheduler.vllm_config.parallel_config.data_parallel_rank
    observers: list[EngineObserver] = []
    timeline = None
    if path := os.environ.get(VARIABLE):
        timeline = TimelineLog(path, start_s=time.monotonic(), instance=number)
        observers.append(timeline)
    if folder := os.environ.get(SHARED_FOLDER):
        # Other values of Prometheus are pages of a file: with a full disk they end the process.
        values.ValueClass = values.MutexValue
        metrics = EngineMetrics(scheduler, TokenClock(thinks), number, timeline)
        try:
            metrics.server = report_server(Path(folder), number, metrics.report)
        except OSError as error:
            log.warning("no metrics of the engine: %s cannot be used (%s)", folder, error)
            return observers
        observers += [metrics.later, metrics.order, metrics]
    return observers


@dataclass(eq=False)
class EngineMetrics(EngineObserver):
    """The counts of a scheduler and its token clock, for the report of its engine."""

    scheduler: Any
    tokens: TokenClock
    """It has the events of the engine from `later`."""
    number: int = 0
    """Number of this engine."""
    timeline: TimelineLog | None = None
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    order: ScoreOrder = field(default_factory=ScoreOrder)
    """An observer of the same engine."""
    server: EngineSocket | None = None
    """Closed with this observer."""

    def __post_init__(self) -> None:
        self._metrics: dict[str, Any] = {
            name: kind(f"lengthwise_{name}", about, labels, registry=self.registry, **more)
            for name, (kind, about, labels, more) in _METRICS.items()
        }
        self._info = Info("lengthwise", "Engines, by what they serve.", registry=self.registry)
        self.later = LaterEvents(self.tokens)
        """An observer of the same engine, placed before this one."""
        self._exported_s = 0.0
        self._is_read, self._is_fresh = False, Event()
        self._load: dict[str, Any] | None = None
        self._exported: Tally[str] = Tally()
        self._shown: set[tuple[str, str]] = set()

    def stepped(self, now_s: float) -> None:
        if self._is_read or len(self.tokens.latencies) > _MOST_UNREAD:
            self._is_read, self._exported_s = False, now_s
            self.export()
            self._is_fresh.set()

    def close(self) -> None:
        if self.server is not None:
            self.server.close()

    def report(self) -> dict[str, Any]:
        """Return load and metrics; a busy engine exports them at the end of its step."""
        if not (self.scheduler.running or self.scheduler.waiting):
            self.export()
        elif self.scheduler.lengthwise_tracker.clock() >= self._exported_s + EVERY_S:
            self._is_fresh.clear()
            self._is_read = True
            self._is_fresh.wait(STEP_WITHIN_S)
        return {"load": self._load, "metrics": generate_latest(self.registry).decode()}

    def export(self) -> None:
        """Update load and metrics from the counts of scheduler and clock."""
        with self.later.lock:
            self.later.tell()
            scheduler, metrics, clock = self.scheduler, self._metrics, self.tokens
            self._info.info(scheduler.lengthwise_info())
            hints = asdict(scheduler.lengthwise_tracker.annotation_counts)
            reloads = scheduler._lengthwise_scoring.reloads if scheduler._lengthwise_scoring else {}
            counters = {
                **{hint: metrics["engine_requests"].labels(hint) for hint in hints},
                **{outcome: metrics["bundle_reloads"].labels(outcome) for outcome in reloads},
                **metrics,
            }
            totals = (
                hints
                | reloads
                | {
                    "expired_ranks": scheduler.lengthwise_tracker.num_expired,
                    "admissions_past_lower_score": self.order.num_past_lower_score,
                    "deferrals": getattr(scheduler._lengthwise_planner, "num_deferred", 0),
                    "telemetry_dropped": self.timeline.drops.count if self.timeline else 0,
                }
            )
            for name, total in totals.items():
                counters[name].inc(total - self._exported[name])
                self._exported[name] = total
            clock.take_all()
            self._export_residents()
            # Not one by one: the gaps of a step of 256 requests would cost as much as its schedule.
            gaps_s = metrics["tbt_seconds"]
            for (user_class, phase, bucket), count in clock.tbt_counts.items():
                gaps_s.labels(phase.name.lower(), user_class)._buckets[bucket].inc(count)
            for (user_class, phase), sum_s in clock.tbt_sums_s.items():
                gaps_s.labels(phase.name.lower(), user_class)._sum.inc(sum_s)
            clock.tbt_counts.clear()
            clock.tbt_sums_s.clear()
            self._export_latencies()
            self._load = load = load_report(scheduler, clock, engine=self.number)
            metrics["kv_usage_fraction"].labels(str(self.number)).set(load["kv_usage_fraction"])
            metrics["pacers"].labels("ahead").set(load["pacers_ahead"])
            metrics["pacers"].labels("empty").set(load["pacers_empty"])
            metrics["paced_tokens"].set(load["paced_tokens"])
            if (watch := getattr(scheduler, "_lengthwise_watch", None)) is not None:
                for name in _OF_RANKER:  # those of an earlier revision end
                    metrics[name].clear()
                for name, label, value in watch.samples():
                    metrics[name].labels(str(self.number), watch.revision, label).set(value)

    def _export_latencies(self) -> None:
        found = defaultdict[tuple[str, str], list[float]](list)
        for name, user_class, value in self.tokens.latencies:
            found[name, user_class].append(value)
        self.tokens.latencies.clear()
        for (name, user_class), values_of in found.items():
            metric = self._metrics[name].labels(user_class)
            if name == "preemptions":
                metric.inc(sum(values_of))
                continue
            bucket_of = partial(bisect_left, metric._upper_bounds)
            for bucket, count in Tally(map(bucket_of, values_of)).items():
                metric._buckets[bucket].inc(count)
            metric._sum.inc(sum(values_of))

    def _export_residents(self) -> None:
        requests, tokens = Tally[tuple[str, str]](), Tally[tuple[str, str]]()
        for request in self.scheduler.running:
            phase = self.tokens.phase(request.request_id).name.lower()
            place = phase, self.tokens.user_class(request.request_id)
            requests[place] += 1
            tokens[place] += request.num_computed_tokens
        self._shown |= requests.keys()
        for place in self._shown:
            self._metrics["resident_requests"].labels(*place).set(requests[place])
            self._metrics["resident_tokens"].labels(*place).set(tokens[place])


def load_report(scheduler: Any, clock: TokenClock, *, engine: int) -> dict[str, Any]:
    """Return the present load of an instance for a router, in PASCAL's terms.

    `on_time` is PASCAL's t: no answering request waits for a token. `undemoted_reasoning` is its r:
    requests without an answer, waiting or resident, with a context that does not demote them.
    `first_quantum_answering` is its a; `kv_tokens` + `host_kv_tokens` is its m. Evicted tokens are
    in host memory if there is a KV connector.

    Source: PASCAL, Algorithms 1 and 2; quantum and threshold of the policy, or else as published.
    """
    phases = Tally(clock.phase(one.request_id).name.lower() for one in scheduler.running)
    num_ahead, num_empty, num_paced = clock.pacers(scheduler.lengthwise_tracker.clock())
    waiting = [*scheduler.waiting, *scheduler._lengthwise_holders]
    pascal = _pascal_of(scheduler.lengthwise_tracker.policy)
    evicted = [request for request in waiting if request.num_preemptions]
    return {
        "engine": engine,
        "waiting": len(waiting),
        **{name: phases[name] for name in ("prefill", "reasoning", "answering")},
        "undemoted_reasoning": sum(
            request.num_tokens <= pascal.demote_above_tokens
            and clock.phase(request.request_id) is not Phase.ANSWERING
            for request in chain(waiting, scheduler.running)
        ),
        "first_quantum_answering": clock.num_answers_below(pascal.quantum_tokens),
        "pacers_ahead": num_ahead,
        "pacers_empty": num_empty,
        "paced_tokens": num_paced,
        "on_time": num_empty == 0,
        "kv_tokens": sum(request.num_computed_tokens for request in scheduler.running),
        "host_kv_tokens": (
            sum(request.num_tokens for request in evicted) if scheduler.connector else 0
        ),
        "kv_usage_fraction": scheduler.kv_cache_manager.usage,
        "written_s": time.time(),
    }


def _pascal_of(policy: Policy) -> Pascal:
    """Return the policy inside its wrappers if it is PASCAL, else PASCAL as published."""
    while isinstance(policy, PolicyWrapper):
        policy = policy.policy
    return policy if isinstance(policy, Pascal) else Pascal()


def exposition(reports: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the metrics of all engines in Prometheus' format: their sums."""
    families: dict[str, Tally[str]] = {}
    for report in reports:
        for family in f"\n{report['metrics']}".split("\n# HELP ")[1:]:
            about, kind, *samples = family.splitlines()
            if not about.split()[0].endswith("_created"):
                sums = families.setdefault(f"# HELP {about}\n{kind}\n", Tally())
                for name, value in (sample.rsplit(" ", 1) for sample in samples):
                    sums[name] += float(value)  # type: ignore[assignment]
    return "".join(
        head + "".join(f"{name} {value}\n" for name, value in sums.items())
        for head, sums in families.items()
    ).encode()
