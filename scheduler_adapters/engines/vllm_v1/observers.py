"""Observers of a vLLM engine that its environment asks for: live metrics, and a timeline to file.

A scheduler lives in the engine process, /metrics in the API server's. Prometheus joins processes by
files in `PROMETHEUS_MULTIPROC_DIR`, which vLLM's /metrics reads; `serve-vllm` sets it. Without it
nothing is exported. In this mode Prometheus leaves out its own `process_*` and `python_*` figures.
The report for a router lies in the same folder; the middleware serves it at `/lengthwise/load`.
`LENGTHWISE_TIMELINE` names the file of the timeline; without it none is written. Imports no engine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from scheduler_adapters.engines.engine_metrics import (
    METRICS_FOLDER,
    EngineMetrics,
    load_report,
    write_load,
)
from scheduler_adapters.timeline.live_log import VARIABLE, TimelineLog
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.token_clock import TokenClock

EVERY_S: Final = 0.25
"""Exporting walks all residents, so it is not done in every step."""


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
        observers += [tokens, MetricsExport(scheduler, tokens, Path(folder), number)]
    if path := os.environ.get(VARIABLE):
        observers.append(TimelineLog(path, start_s=time.monotonic(), instance=number))
    return observers


class MetricsExport(EngineObserver):
    """Exports now and then what a scheduler and its token clock have counted.

    Args:
        tokens: an observer of the same engine, told before this one.
        folder: where the report for a router goes.
        number: of this engine.
    """

    def __init__(self, scheduler: Any, tokens: TokenClock, folder: Path, number: int) -> None:
        self._scheduler = scheduler
        self._tokens = tokens
        self._folder = folder
        self._number = number
        self._metrics = EngineMetrics(engine=number)
        self._exported_s = 0.0

    def stepped(self, now_s: float) -> None:
        # After its last request an engine takes no more steps: what is out then stays.
        if now_s < self._exported_s + EVERY_S and self._scheduler.running:
            return
        self._exported_s = now_s
        self._metrics.export(self._scheduler, self._tokens)
        write_load(self._folder, load_report(self._scheduler, self._tokens, engine=self._number))
