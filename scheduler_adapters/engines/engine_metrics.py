"""Live figures of a vLLM scheduler's decisions and its users' latencies, and their observers.

A scheduler lives in the engine process, /metrics in the API server's. Prometheus joins processes by
files in `PROMETHEUS_MULTIPROC_DIR`, which vLLM's /metrics reads; `serve-vllm` sets it. Without it
nothing is exported. In this mode Prometheus leaves out its own `process_*` and `python_*` figures.
The report for a router lies in the same folder; the middleware serves it at `/lengthwise/load`.
`LENGTHWISE_TIMELINE` names the file of the timeline; without it none is written. Imports no engine.
"""

import json
import os
import time
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policy import Policy, PolicyWrapper
from scheduler_adapters.timeline.live_log import VARIABLE, TimelineLog
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.token_clock import PHASES, TBT_BUCKETS_S, TokenClock
from scheduler_adapters.views import Phase

METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable: the folder in which vLLM's processes share their figures."""
EVERY_S: Final = 0.25
"""Exporting walks all residents, so it is not done in every step."""
_ANSWER_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
_QOE_BUCKETS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
_LATENCY_BUCKETS_S: Final = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0,
)  # fmt: skip
_LOAD_FILE: Final = "lengthwise-load-{}.json"
_CLASS: Final = ("user_class",)
_PHASE_AND_CLASS: Final = ("phase", "user_class")

_COUNTERS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "engine_requests": (
        "Requests by the score they carried: scored, unscored; invalid hints count in both, late "
        "(a score came while they waited) in unscored.",
        ("hint",),
    ),
    "expired_ranks": (
        "Ranks that ended in time: with a starvation guard, requests that it boosted.",
        (),
    ),
    "deferrals": ("Running requests left out of a step, summed over steps.", ()),
    "preemptions": ("Preemptions of finished requests.", _CLASS),
}
"""Name, behind `lengthwise_` -> description and labels."""
_GAUGES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "resident_requests": ("Requests that hold KV blocks.", _PHASE_AND_CLASS),
    "resident_tokens": ("Tokens in KV blocks.", _PHASE_AND_CLASS),
    "pacers": ("Answering requests by their pacer: ahead of the reader, or empty.", ("state",)),
    "paced_tokens": ("Generated tokens that readers have not come to yet.", ()),
    "kv_usage_fraction": ("Used KV blocks / all KV blocks.", ("engine",)),
}
_HISTOGRAMS: Final[Mapping[str, tuple[str, Sequence[str], Sequence[float]]]] = {
    "tbt_seconds": ("Gaps between consecutive output tokens.", _PHASE_AND_CLASS, TBT_BUCKETS_S),
    "ttft_seconds": ("First output token - arrival.", _CLASS, _LATENCY_BUCKETS_S),
    "e2e_seconds": ("Last output token - arrival.", _CLASS, _LATENCY_BUCKETS_S),
    "queueing_seconds": ("First scheduled - queued in the engine.", _CLASS, _LATENCY_BUCKETS_S),
    "tpot_seconds": ("Mean gap between a request's output tokens.", _CLASS, TBT_BUCKETS_S),
    "first_answer_seconds": ("First answering token - arrival.", _CLASS, _ANSWER_BUCKETS_S),
    "ttfat_seconds": ("First answering token - end of reasoning.", _CLASS, _ANSWER_BUCKETS_S),
    "qoe": ("QoE of finished requests; 1: a stream without stalls.", _CLASS, _QOE_BUCKETS),
}
"""Name, behind `lengthwise_` -> description, labels and buckets."""


def observers_from_environment(scheduler: Any, *, thinks: bool) -> list[EngineObserver]:
    """Return the observers of a scheduler; none where the environment asks for none.

    Args:
        thinks: whether the engine knows which tokens end thinking.

    Raises:
        ConfigError: the timeline cannot be written.
    """
    number = scheduler.vllm_config.parallel_config.data_parallel_rank
    observers: list[EngineObserver] = []
    if folder := os.environ.get(METRICS_FOLDER):
        tokens = TokenClock(thinks)
        observers += [tokens, EngineMetrics(scheduler, tokens, Path(folder), number)]
    if path := os.environ.get(VARIABLE):
        observers.append(TimelineLog(path, start_s=time.monotonic(), instance=number))
    return observers


@dataclass(eq=False)
class EngineMetrics(EngineObserver):
    """Exports now and then what a scheduler and its token clock have counted."""

    scheduler: Any
    tokens: TokenClock
    """An observer of the same engine, told before this one."""
    folder: Path
    """Where the report for a router goes."""
    number: int = 0
    """Of this engine."""
    registry: CollectorRegistry = REGISTRY

    def __post_init__(self) -> None:
        registry = self.registry
        self._metrics: dict[str, Any] = {
            name: Counter(f"lengthwise_{name}", about, labels, registry=registry)
            for name, (about, labels) in _COUNTERS.items()
        }
        for name, (about, labels) in _GAUGES.items():
            mode: Any = "mostrecent" if name == "kv_usage_fraction" else "livesum"
            self._metrics[name] = Gauge(
                f"lengthwise_{name}", about, labels, registry=registry, multiprocess_mode=mode
            )
        for name, (about, labels, buckets) in _HISTOGRAMS.items():
            self._metrics[name] = Histogram(
                f"lengthwise_{name}", about, labels, buckets=buckets, registry=registry
            )
        self._exported_s = 0.0
        self._exported: Tally[str] = Tally()
        self._shown: set[tuple[str, str]] = set()

    def stepped(self, now_s: float) -> None:
        # After its last request an engine takes no more steps: what is out then stays.
        if now_s < self._exported_s + EVERY_S and self.scheduler.running:
            return
        self._exported_s = now_s
        self.export()
        write_load(self.folder, load_report(self.scheduler, self.tokens, engine=self.number))

    def export(self) -> None:
        """Bring all figures up to date with the counts of scheduler and clock."""
        scheduler, metrics = self.scheduler, self._metrics
        ranker, planner = scheduler.lengthwise, scheduler._lengthwise_planner
        counts = ranker.hint_counts
        for name in ("scored", "unscored", "invalid", "late"):
            self._advance(metrics["engine_requests"].labels(name), name, getattr(counts, name))
        self._advance(metrics["expired_ranks"], "expired", ranker.num_expired)
        self._advance(metrics["deferrals"], "deferred", planner.num_deferred if planner else 0)
        metrics["kv_usage_fraction"].labels(str(self.number)).set(scheduler.kv_cache_manager.usage)
        self._export_residents()
        self._export_gaps()
        num_ahead, num_empty, num_tokens = self.tokens.pacers(ranker.clock())
        metrics["pacers"].labels("ahead").set(num_ahead)
        metrics["pacers"].labels("empty").set(num_empty)
        metrics["paced_tokens"].set(num_tokens)
        self._export_finished()

    def _export_finished(self) -> None:
        clock = self.tokens
        for served in clock.served:
            for name in ("ttft", "e2e", "queueing", *(("tpot",) if served.num_gaps else ())):
                self._observe(f"{name}_seconds", served.user_class, getattr(served, f"{name}_s"))
            self._metrics["preemptions"].labels(served.user_class).inc(served.preemptions)
        told = {
            "first_answer_seconds": clock.first_answers,
            "ttfat_seconds": clock.ttfat,
            "qoe": clock.finished_qoe,
        }
        for name, events in told.items():
            for user_class, value in events:
                self._observe(name, user_class, value)
            events.clear()
        clock.served.clear()

    def _observe(self, name: str, user_class: str, value: float) -> None:
        self._metrics[name].labels(user_class).observe(value)

    def _export_residents(self) -> None:
        requests, tokens = Tally[tuple[str, str]](), Tally[tuple[str, str]]()
        for phase, request in _residents(self.scheduler, self.tokens):
            place = (phase, self.tokens.user_class(request.request_id))
            requests[place] += 1
            tokens[place] += request.num_computed_tokens
        self._shown |= requests.keys()
        for place in self._shown:
            self._metrics["resident_requests"].labels(*place).set(requests[place])
            self._metrics["resident_tokens"].labels(*place).set(tokens[place])

    def _export_gaps(self) -> None:
        clock, gaps_s = self.tokens, self._metrics["tbt_seconds"]
        for user_class, by_phase, sums_s in zip(
            clock.classes, clock.tbt_counts.tolist(), clock.tbt_sums_s.tolist(), strict=True
        ):
            for phase, counts, sum_s in zip(PHASES, by_phase, sums_s, strict=True):
                if any(counts):
                    _observe_many(gaps_s.labels(phase.name.lower(), user_class), counts, sum_s)
        clock.tbt_counts[:] = 0
        clock.tbt_sums_s[:] = 0

    def _advance(self, counter: Counter, name: str, total: int) -> None:
        counter.inc(total - self._exported[name])
        self._exported[name] = total


def _observe_many(histogram: Histogram, counts: Sequence[int], total: float) -> None:
    # One by one, the gaps of a step of 256 requests would cost as much as its schedule.
    for bucket, count in zip(histogram._buckets, counts, strict=True):
        bucket.inc(count)
    histogram._sum.inc(total)


def _residents(scheduler: Any, clock: TokenClock) -> Iterator[tuple[str, Any]]:
    """Yield each resident with the name of its phase."""
    for request in scheduler.running:
        yield clock.phase(request.request_id).name.lower(), request


def load_report(scheduler: Any, clock: TokenClock, *, engine: int) -> dict[str, Any]:
    """Return the load of an instance for a router, in PASCAL's terms where it has them.

    `on_time` is its t (no answering request waits for a token); `undemoted_reasoning` its r: those
    that have not answered yet, waiting or resident, with a context that does not demote them;
    `first_quantum_answering` its a; `kv_tokens` + `host_kv_tokens` its m. The host counts where a
    KV connector keeps what is evicted, with all tokens of the evicted. Numbers are of this moment.

    Source: PASCAL, Algorithms 1 and 2; quantum and threshold are those of the policy, or PASCAL's.
    """
    phases = Tally(phase for phase, _ in _residents(scheduler, clock))
    num_ahead, num_empty, num_paced = clock.pacers(scheduler.lengthwise.clock())
    waiting = [*scheduler.waiting, *scheduler._lengthwise_holders]
    pascal = _pascal_of(scheduler.lengthwise.policy)
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
    """Return the policy behind its wrappers if it is PASCAL, else PASCAL as published."""
    while isinstance(policy, PolicyWrapper):
        policy = policy.policy
    return policy if isinstance(policy, Pascal) else Pascal()


def write_load(folder: Path, report: Mapping[str, Any]) -> None:
    """Write a `load_report` for `read_loads`; whole or not at all."""
    path = folder / _LOAD_FILE.format(report["engine"])
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(report))
    os.replace(draft, path)


def read_loads(folder: Path) -> list[dict[str, Any]]:
    """Return the newest report of each engine that shares `folder`; empty before the first step."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(_LOAD_FILE.format("*")))]
