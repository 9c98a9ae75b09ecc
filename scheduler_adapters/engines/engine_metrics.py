"""What a scheduler decides, for Prometheus: scores it found, boosts, deferrals, phases.

Counted in the engine process; `vllm_measured.py` says how it gets to vLLM's /metrics.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from scheduler_adapters.views import Phase


class EngineMetrics:
    """The counters of one engine process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.hints = Counter(
            "lengthwise_engine_requests",
            "Requests by the score they carried: scored, unscored; invalid hints count in both.",
            ["hint"],
            registry=registry,
        )
        self.boosts = Counter(
            "lengthwise_expired_ranks",
            "Ranks that ended in time: with a starvation guard, requests that it boosted.",
            registry=registry,
        )
        self.deferrals = Counter(
            "lengthwise_deferrals",
            "Running requests left out of a step, summed over steps.",
            registry=registry,
        )
        self.requests, self.tokens = (
            Gauge(name, about, ["phase"], registry=registry, multiprocess_mode="livesum")
            for name, about in (
                ("lengthwise_resident_requests", "Requests that hold KV blocks, by phase."),
                ("lengthwise_resident_tokens", "Tokens in KV blocks, by phase."),
            )
        )
        self._exported: Tally[str] = Tally()

    def export(self, scheduler: Any) -> None:
        """Bring the counters up to what the scheduler has counted."""
        ranker, planner = scheduler.lengthwise, scheduler._lengthwise_planner
        counts = ranker.hint_counts
        for name in ("scored", "unscored", "invalid"):
            self._advance(self.hints.labels(name), name, getattr(counts, name))
        self._advance(self.boosts, "boosts", ranker.num_expired)
        self._advance(self.deferrals, "deferrals", planner.num_deferred if planner else 0)
        requests, tokens = _residents(scheduler)
        for phase in ("running", "prefill", "reasoning", "answering"):
            self.requests.labels(phase).set(requests.get(phase, 0))
            self.tokens.labels(phase).set(tokens.get(phase, 0))

    def _advance(self, counter: Counter, name: str, total: int) -> None:
        counter.inc(total - self._exported[name])
        self._exported[name] = total


def _residents(scheduler: Any) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Phase -> residents, and their tokens; "running" where the policy follows no phases."""
    requests, tokens = Tally[str](), Tally[str]()
    follows = scheduler._lengthwise_planner is not None
    for request in scheduler.running:
        phase = request.lengthwise.view.phase if follows else Phase.WAITING
        name = "running" if phase is Phase.WAITING else phase.name.lower()
        requests[name] += 1
        tokens[name] += request.num_computed_tokens
    return requests, tokens
