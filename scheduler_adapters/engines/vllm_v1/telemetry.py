"""Latency per user class on vLLM's /metrics: a stat logger plugin.

vLLM finds it by the entry point group `vllm.stat_logger_plugins` and runs it in the API server
process, where the middleware knows the class of each request. There it sees a request once, when
it has finished: arrival, queueing, first and last token, number of tokens, preemptions.

It cannot see single tokens of a request, so `lengthwise_tpot_seconds` is the mean gap of each
request, not every gap, and neither what the scheduler decided nor the phase of a request: those
live in the engine process. `vllm_measured.py` counts them there, and writes a timeline with the
time of every token. Requests that a client aborts are not reported by vLLM.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from vllm.v1.metrics.loggers import StatLoggerBase

from scheduler_adapters.engines.user_classes import CLASSES_IN_FLIGHT

_LATENCY_S: Final = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0,
)  # fmt: skip
_GAP_S: Final = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)


class ClassMetrics:
    """What is exported, by user class; class "" are those without one."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, about, ["user_class"], buckets=buckets, registry=registry)

        self.ttft_s = histogram(
            "lengthwise_ttft_seconds", "First output token - arrival.", _LATENCY_S
        )
        self.e2e_s = histogram("lengthwise_e2e_seconds", "Last output token - arrival.", _LATENCY_S)
        self.queueing_s = histogram(
            "lengthwise_queueing_seconds", "First scheduled - queued in the engine.", _LATENCY_S
        )
        self.tpot_s = histogram(
            "lengthwise_tpot_seconds", "Mean gap between a request's output tokens.", _GAP_S
        )
        self.preemptions = Counter(
            "lengthwise_preemptions",
            "Preemptions of finished requests.",
            ["user_class"],
            registry=registry,
        )
        self.kv_usage = Gauge(
            "lengthwise_kv_usage_fraction",
            "Used KV blocks / all KV blocks.",
            ["engine"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )

    def observe(self, finished: Any, user_class: str) -> None:
        """Take in one of vLLM's `FinishedRequestStats`."""
        if finished.num_generation_tokens < 1:
            return
        # vLLM measures the decode on the engine's clock and the rest on that of the front end;
        # the instant of the first token is what both agree on.
        self.ttft_s.labels(user_class).observe(finished.e2e_latency - finished.decode_time)
        self.e2e_s.labels(user_class).observe(finished.e2e_latency)
        self.queueing_s.labels(user_class).observe(finished.queued_time)
        self.preemptions.labels(user_class).inc(finished.num_preemptions)
        if finished.num_generation_tokens > 1:
            self.tpot_s.labels(user_class).observe(finished.mean_time_per_output_token)


@cache
def class_metrics() -> ClassMetrics:
    """Those of this process: vLLM makes a logger per engine, Prometheus wants a name once."""
    return ClassMetrics()


class ClassTelemetry(StatLoggerBase):  # type: ignore[misc]
    """Hands what vLLM reports to `ClassMetrics`."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._metrics = class_metrics()
        self._kv_usage = self._metrics.kv_usage.labels(str(engine_index))

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        if scheduler_stats is not None:
            self._kv_usage.set(scheduler_stats.kv_cache_usage)
        if iteration_stats is not None:
            for finished in iteration_stats.finished_requests:
                name = CLASSES_IN_FLIGHT.of(finished.request_id)
                self._metrics.observe(finished, name)

    def log_engine_initialized(self) -> None: ...
