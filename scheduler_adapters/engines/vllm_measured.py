"""The schedulers of `vllm_v1.py`, whose counters show on vLLM's /metrics, with a timeline to file.

A scheduler lives in the engine process, /metrics in the API server's. Prometheus joins processes by
files in `PROMETHEUS_MULTIPROC_DIR`, which vLLM's /metrics reads; `serve-vllm` sets it. Without it
nothing is exported. In this mode Prometheus leaves out its own `process_*` and `python_*` figures.
`LENGTHWISE_TIMELINE` names the file of the timeline; without it none is written.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

from scheduler_adapters.engines import timeline_log
from scheduler_adapters.engines.engine_metrics import EngineMetrics
from scheduler_adapters.engines.timeline_log import TimelineLog
from scheduler_adapters.engines.vllm_v1 import AsyncRankScheduler, RankScheduler

EVERY_S: Final = 0.25
"""Exporting costs some ten microseconds, which is what FCFS may add to a step."""


class MeasuredMixin:
    """Exports now and then, when vLLM asks its scheduler for statistics."""

    _lengthwise_metrics: EngineMetrics | None = None
    _lengthwise_timeline: TimelineLog | None = None
    _lengthwise_exported_s = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        engine: Any = self
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if (timeline := self._lengthwise_timeline) is not None:
            timeline.forget(output.finished_req_ids)
            for new in output.scheduled_new_reqs:
                view = engine.requests[new.req_id].lengthwise.view
                timeline.admitted(view, engine.lengthwise.load.now_s)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        if self._lengthwise_timeline is not None:
            self._lengthwise_write(self._lengthwise_timeline, outputs)
        return outputs

    def _lengthwise_write(self, timeline: TimelineLog, outputs: Any) -> None:
        engine: Any = self
        now_s = engine.lengthwise.clock()
        for output in (one for each in outputs.values() for one in each.outputs):
            timeline.emitted(output.request_id, len(output.new_token_ids), now_s)
            if output.finish_reason is not None:
                timeline.finished(output.request_id)
        timeline.flush()

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
    if path := os.environ.get(timeline_log.VARIABLE):
        number = vllm_config.parallel_config.data_parallel_rank
        made._lengthwise_timeline = TimelineLog(
            path, start_s=made.lengthwise.clock(), instance=number
        )
    return made
