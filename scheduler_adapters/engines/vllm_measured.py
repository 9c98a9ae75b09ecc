"""The schedulers of `vllm_v1.py`, whose counters show on vLLM's /metrics.

A scheduler lives in the engine process, /metrics in the API server's. Prometheus joins processes by
files in `PROMETHEUS_MULTIPROC_DIR`, which vLLM's /metrics reads; `serve-vllm` sets it. Without it
nothing is exported. In this mode Prometheus leaves out its own `process_*` and `python_*` figures.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

from scheduler_adapters.engines.engine_metrics import EngineMetrics
from scheduler_adapters.engines.vllm_v1 import AsyncRankScheduler, RankScheduler

EVERY_S: Final = 0.25
"""Exporting costs some ten microseconds, which is what FCFS may add to a step."""


class MeasuredMixin:
    """Exports now and then, when vLLM asks its scheduler for statistics."""

    _lengthwise_metrics: EngineMetrics | None = None
    _lengthwise_exported_s = 0.0

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        now_s = time.monotonic()
        metrics, due_s = self._lengthwise_metrics, self._lengthwise_exported_s + EVERY_S
        # After its last request an engine takes no more steps: what is out then stays.
        if metrics is not None and (now_s >= due_s or not self.running):  # type: ignore[attr-defined]
            self._lengthwise_exported_s = now_s
            metrics.export(self)
        return super().make_stats(*args, **kwargs)  # type: ignore[misc]


class MeasuredScheduler(MeasuredMixin, RankScheduler):
    """`RankScheduler` that exports what it counts."""


class MeasuredAsyncScheduler(MeasuredMixin, AsyncRankScheduler):
    """`AsyncRankScheduler` that exports what it counts."""


def scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> Any:
    """As `vllm_v1.scheduler`, measured where Prometheus is told to join processes."""
    asynchronous = vllm_config.scheduler_config.async_scheduling
    chosen = MeasuredAsyncScheduler if asynchronous else MeasuredScheduler
    made = chosen(*args, vllm_config=vllm_config, **kwargs)
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        made._lengthwise_metrics = EngineMetrics()
    return made
