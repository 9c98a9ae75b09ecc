"""Prometheus metrics: calls, stages, queue, cache, the model served and its live quality."""

import math
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from scoring_service.service.call_results import Scored
from scoring_service.service.scoring import CallAnswer, ScoringService

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_COUNTS: Final = {
    "expired_prompts": "Dropped uncomputed: cancelled, or after their deadline.",
    "refused_prompts": "Refused at admission.",
    "model_runs": "Runs of the model.",
    "run_prompts": "Prompts in those runs.",
    "run_tokens": "Tokens in those runs.",
    "padded_tokens": "With padding.",
    "cache_hits": "Prompts answered from memory.",
    "cache_joins": "Prompts that joined another call.",
}


class Metrics(Collector):
    """Metrics of one server, in a registry of their own."""

    def __init__(self, service: ScoringService) -> None:
        self._service = service
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "scoring_calls", "Calls by gRPC status.", ["method", "code"], registry=self.registry
        )
        stages = Histogram(
            "scoring_stage_seconds",
            "Time of a call by stage; for a batch the stages of its prompts overlap.",
            ["stage"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._stages = [stages.labels(stage) for stage in ("tokenize", "queue", "infer", "total")]
        self._prompt_tokens = Histogram(
            "scoring_prompt_tokens",
            "Tokens that the model read of a prompt.",
            registry=self.registry,
            buckets=(8, 16, 32, 64, 128, 256, 512, 1024),
        )
        self._reloads = Counter(
            "scoring_reloads", "Model reloads by outcome.", ["outcome"], registry=self.registry
        )
        self.registry.register(self)

    def count_call(self, method: str, code: str) -> None:
        """Count a call that ended with that gRPC status."""
        self._calls.labels(method, code).inc()

    def observe(self, answer: CallAnswer) -> None:
        """Count the stages and tokens of an answered call."""
        scored = [item for item in answer.items if isinstance(item, Scored)]
        if scored:  # A refusal passes no stage.
            for histogram, seconds in zip(self._stages, answer.timings, strict=True):
                histogram.observe(seconds)
        for item in scored:
            self._prompt_tokens.observe(item.prompt_tokens)

    def count_reload(self, outcome: str) -> None:
        """Count a new version of the model, loaded or refused."""
        self._reloads.labels(outcome).inc()

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type for the value of an Accept header."""
        write, kind = choose_encoder(accept)
        return write(self.registry), kind

    def collect(self) -> Iterator[Metric]:
        """Yield the present state of the service. For the registry."""
        batcher, cache, model = self._service.batcher, self._service.cache, self._service.model
        wait_s = batcher.predicted_wait_s()
        for name, text, gauge in (
            ("queued_prompts", "Prompts waiting for a core.", batcher.num_queued),
            ("predicted_wait_seconds", "Predicted wait of a new prompt.", wait_s),
            ("slowdown_ratio", "Time of recent runs / their time at start-up.", batcher.slowdown),
            ("cache_entries", "Scores in memory.", len(cache)),
        ):
            yield GaugeMetricFamily(f"scoring_{name}", text, value=gauge)
        counts = batcher.counts | cache.counts
        for name, text in _COUNTS.items():
            yield CounterMetricFamily(f"scoring_{name}", text, value=counts[name])
        family = GaugeMetricFamily(
            "scoring_model_info", "The model served.", labels=["name", "revision", "precision"]
        )
        family.add_metric([model.manifest.name, model.revision, model.precision], 1)
        yield family
        for name, text, field in (
            ("observed_responses", "In the rolling window.", "num_answers"),
            ("live_tau_b", "Scores against observed lengths.", "tau_b"),
        ):
            family = GaugeMetricFamily(f"scoring_{name}", text, labels=["target_model"])
            for target_model, figures in self._service.reports.quality.items():
                if not math.isnan(value := getattr(figures, field)):
                    family.add_metric([target_model], value)
            yield family
