"""Prometheus metrics: calls, stages, queue, cache, the model served and its live quality."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from scoring_service.service.call_results import Scored
from scoring_service.service.scoring import CallAnswer, ScoringService

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_TOKENS: Final = (8, 16, 32, 64, 128, 256, 512, 1024)
_STAGES: Final = ("tokenize", "queue", "infer", "total")
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


class _Buckets:
    """Numbers of values up to each bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def counted(self) -> list[tuple[str, int]]:
        """Return each bound with the number of values up to it."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class Metrics(Collector):
    """Metrics of one server, in a registry of their own."""

    def __init__(self, service: ScoringService) -> None:
        self._service = service
        self.registry = CollectorRegistry()
        self._calls = Counter[tuple[str, str]]()
        self._reloads = Counter[tuple[str]]()
        self._stages = [_Buckets(_SECONDS) for _ in _STAGES]
        self._prompt_tokens = _Buckets(_TOKENS)
        # One lock and plain numbers: the library's own histograms cost as much as a short prompt.
        self._lock = threading.Lock()
        self.registry.register(self)

    def count_call(self, method: str, code: str) -> None:
        """Count a call that ended with that gRPC status."""
        with self._lock:
            self._calls[method, code] += 1

    def observe(self, answer: CallAnswer) -> None:
        """Count the stages and tokens of an answered call."""
        scored = [item for item in answer.items if isinstance(item, Scored)]
        with self._lock:
            for stage, seconds in zip(self._stages, answer.timings, strict=True):
                if scored:  # A refusal passes no stage.
                    stage.add(seconds)
            for item in scored:
                self._prompt_tokens.add(item.prompt_tokens)

    def count_reload(self, outcome: str) -> None:
        """Count a new version of the model, loaded or refused."""
        with self._lock:
            self._reloads[(outcome,)] += 1

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type for the value of an Accept header."""
        write, kind = choose_encoder(accept)
        return write(self.registry), kind

    def collect(self) -> Iterator[Metric]:
        """Yield the present state of the service. For the registry."""
        for name, text, labels, found in (
            ("calls", "Calls by gRPC status.", ["method", "code"], self._calls),
            ("reloads", "Model reloads by outcome.", ["outcome"], self._reloads),
        ):
            counter = CounterMetricFamily(f"scoring_{name}", text, labels=labels)
            for values, count in found.copy().items():
                counter.add_metric(values, count)
            yield counter
        text = "Time of a call by stage; for a batch the stages of its prompts overlap."
        stages = HistogramMetricFamily("scoring_stage_seconds", text, labels=["stage"])
        for name, buckets in zip(_STAGES, self._stages, strict=True):
            stages.add_metric([name], buckets.counted(), buckets.sum)
        yield stages
        text = "Tokens that the model read of a prompt."
        tokens = HistogramMetricFamily("scoring_prompt_tokens", text)
        tokens.add_metric([], self._prompt_tokens.counted(), self._prompt_tokens.sum)
        yield tokens
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
            ("observed_responses", "In the rolling window.", "num_observed"),
            ("live_tau_b", "Scores against observed lengths.", "tau_b"),
        ):
            family = GaugeMetricFamily(f"scoring_{name}", text, labels=["target_model"])
            for target_model, figures in self._service.reports.quality.items():
                if (value := getattr(figures, field)) is not None:
                    family.add_metric([target_model], value)
            yield family
