"""The schedulers of `vllm_v1.py`, whose counters show on vLLM's /metrics, with a timeline to file.

A scheduler lives in the engine process, /metrics in the API server's. Prometheus joins processes by
files in `PROMETHEUS_MULTIPROC_DIR`, which vLLM's /metrics reads; `serve-vllm` sets it. Without it
nothing is exported. In this mode Prometheus leaves out its own `process_*` and `python_*` figures.
The report for a router lies in the same folder; the middleware serves it at `/lengthwise/load`.
`LENGTHWISE_TIMELINE` names the file of the timeline; without it none is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from scheduler_adapters.engines.engine_metrics import (
    METRICS_FOLDER,
    EngineMetrics,
    load_report,
    write_load,
)
from scheduler_adapters.engines.vllm_v1.rank_scheduler import (
    AsyncRankScheduler,
    RankScheduler,
    think_end_of,
)
from scheduler_adapters.timeline import live_log as timeline_log
from scheduler_adapters.timeline.live_log import TimelineLog
from scheduler_adapters.timeline.token_clock import TokenClock
from scheduler_adapters.views import RequestView

EVERY_S: Final = 0.25
"""Exporting walks all residents, so it is not done in every step."""


class MeasuredMixin:
    """Watches the tokens that come out of each step, and exports now and then."""

    _lengthwise_metrics: EngineMetrics | None = None
    _lengthwise_tokens: TokenClock
    _lengthwise_folder: Path
    _lengthwise_number = 0
    _lengthwise_timeline: TimelineLog | None = None
    _lengthwise_exported_s = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if self._lengthwise_metrics is not None:
            self._lengthwise_tokens.forget(output.finished_req_ids)
            for view in self._lengthwise_started(output):
                self._lengthwise_tokens.admitted(view)
        if (timeline := self._lengthwise_timeline) is not None:
            timeline.forget(output.finished_req_ids)
            for view in self._lengthwise_started(output):
                timeline.admitted(view, self.lengthwise.load.now_s)  # type: ignore[attr-defined]
        return output

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        if self._lengthwise_timeline is not None:
            self._lengthwise_timeline.close()
            self._lengthwise_timeline = None

    def _lengthwise_started(self, output: Any) -> Iterator[RequestView]:
        requests = self.requests  # type: ignore[attr-defined]
        return (requests[new.req_id].lengthwise.view for new in output.scheduled_new_reqs)

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        metrics, timeline = self._lengthwise_metrics, self._lengthwise_timeline
        if metrics is None and timeline is None:
            return outputs
        now_s = self.lengthwise.clock()  # type: ignore[attr-defined]
        answers = [one for each in outputs.values() for one in each.outputs]
        if timeline is not None:
            self._lengthwise_write(timeline, answers, now_s)
        if metrics is not None:
            self._lengthwise_see(answers, now_s)
            # After its last request an engine takes no more steps: what is out then stays.
            if now_s >= self._lengthwise_exported_s + EVERY_S or not self.running:  # type: ignore[attr-defined]
                self._lengthwise_exported_s = now_s
                self._lengthwise_export(metrics)
        return outputs

    def _lengthwise_see(self, answers: Sequence[Any], now_s: float) -> None:
        clock = self._lengthwise_tokens
        with_tokens = [answer for answer in answers if answer.new_token_ids]
        clock.step_ended(
            now_s,
            [answer.request_id for answer in with_tokens],
            [answer.new_token_ids for answer in with_tokens],
        )
        for answer in answers:
            if answer.finish_reason is not None:
                clock.finished(answer.request_id)

    def _lengthwise_write(
        self, timeline: TimelineLog, answers: Sequence[Any], now_s: float
    ) -> None:
        for answer in answers:
            timeline.emitted(answer.request_id, len(answer.new_token_ids), now_s)
            if answer.finish_reason is not None:
                timeline.finished(answer.request_id)
        timeline.flush()

    def _lengthwise_export(self, metrics: EngineMetrics) -> None:
        metrics.export(self, self._lengthwise_tokens)
        report = load_report(self, self._lengthwise_tokens, engine=self._lengthwise_number)
        write_load(self._lengthwise_folder, report)


class MeasuredScheduler(MeasuredMixin, RankScheduler):
    """`RankScheduler` that exports what it counts."""


class MeasuredAsyncScheduler(MeasuredMixin, AsyncRankScheduler):
    """`AsyncRankScheduler` that exports what it counts."""


def scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> Any:
    """As `vllm_v1.scheduler`, measured where Prometheus is told to join processes."""
    asynchronous = vllm_config.scheduler_config.async_scheduling
    chosen = MeasuredAsyncScheduler if asynchronous else MeasuredScheduler
    made = chosen(*args, vllm_config=vllm_config, **kwargs)
    made._lengthwise_number = vllm_config.parallel_config.data_parallel_rank
    if folder := os.environ.get(METRICS_FOLDER):
        made._lengthwise_folder = Path(folder)
        made._lengthwise_tokens = TokenClock(think_end_of(made))
        made._lengthwise_metrics = EngineMetrics()
    if path := os.environ.get(timeline_log.VARIABLE):
        made._lengthwise_timeline = TimelineLog(
            path, start_s=made.lengthwise.clock(), instance=made._lengthwise_number
        )
    return made
