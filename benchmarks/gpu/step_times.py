"""Durations of an engine's steps and of its scheduler, with the size of each batch."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pandas as pd

from scheduler_adapters.engines.vllm_v1.in_process import scheduler_of

COLUMNS: Final = (
    "step_s", "cpu_s", "schedule_s", "update_s", "gc_s", "batch", "tokens", "context", "longest",
    "waiting",
)  # fmt: skip
"""Of one step: seconds of the wall and of the process's CPU; within them schedule(),
update_from_output() and garbage collection; then requests of the batch, their tokens, the sum and
the greatest of their contexts, and the requests that wait."""
_SIZES: Final = {"batch": (0, 16, 32, 48, 63, np.inf), "waiting": (-1, 0, 250, 500, 750, np.inf)}
_now: Final = time.perf_counter


class StepTimes:
    """Steps of a vLLM engine in this process, a row of `COLUMNS` each.

    An asynchronous engine schedules the next step before it reads the outcome of the present one.
    A row has the batch of the outcome, and the time of the scheduling within the same turn.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        self._spent_s = dict.fromkeys(("schedule", "update", "gc"), 0.0)
        self._batch: tuple[int, ...] = ()

    @contextmanager
    def watching(self, engine: Any) -> Iterator[None]:
        """Record the steps of an engine that `open_engine` has opened, until the end."""
        scheduler, step = scheduler_of(engine), engine.step
        schedule, update = scheduler.schedule, scheduler.update_from_output
        before: tuple[float, float] | None = None

        def scheduled(*arguments: Any, **named: Any) -> Any:
            began_s = _now()
            plan = schedule(*arguments, **named)
            self._spent_s["schedule"] += _now() - began_s
            return plan

        def updated(plan: Any, *arguments: Any, **named: Any) -> Any:
            sizes = plan.num_scheduled_tokens
            requests = map(scheduler.requests.get, sizes)
            contexts = [one.num_computed_tokens for one in requests if one is not None]
            if contexts:
                self._batch = len(sizes), sum(sizes.values()), sum(contexts), max(contexts)
            began_s = _now()
            outputs = update(plan, *arguments, **named)
            self._spent_s["update"] += _now() - began_s
            return outputs

        def stepped() -> Any:
            nonlocal before
            before = before or (_now(), time.process_time())
            outputs = step()
            if self._batch:
                after = _now(), time.process_time()
                took_s = after[0] - before[0], after[1] - before[1], *self._spent_s.values()
                self.rows.append((*took_s, *self._batch, len(scheduler.waiting)))
                self._spent_s = dict.fromkeys(self._spent_s, 0.0)
                before, self._batch = after, ()
            return outputs

        scheduler.schedule, scheduler.update_from_output, engine.step = scheduled, updated, stepped
        gc.callbacks.append(self._collects)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collects)
            # The driver has set the scheduler's own methods back by itself.
            del engine.step
            for name in ("schedule", "update_from_output"):
                vars(scheduler).pop(name, None)

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        self._spent_s["gc"] += _now() if phase == "stop" else -_now()

    def table(self) -> pd.DataFrame:
        """Return a row per step."""
        return pd.DataFrame(self.rows, columns=list(COLUMNS))


def summary(steps: pd.DataFrame) -> dict[str, Any]:
    """Return the durations of a run's steps: together, by kind, by batch and by queue."""
    kinds = pd.Series(np.where(steps.tokens > steps.batch, "prefill", "decode"), steps.index)
    parts = {"": [kinds]} | {
        f" {name} ": [kinds, pd.cut(steps[name], edges)] for name, edges in _SIZES.items()
    }
    found = {"all": _durations(steps)} | {
        what.join(map(str, key)): _durations(part)
        for what, keys in parts.items()
        for key, part in steps.groupby(keys, observed=True)
    }
    means = {"mean_batch": float(steps.batch.mean()), "mean_context": float(steps.context.mean())}
    return means | {"cpu_s": float(steps.cpu_s.sum()), "gc_s": float(steps.gc_s.sum())} | found


def _durations(steps: pd.DataFrame) -> dict[str, float]:
    found: dict[str, float] = {"steps": len(steps)}
    for name, values in (("step_ms", steps.step_s * 1e3), ("schedule_us", steps.schedule_s * 1e6)):
        p50, p99 = np.quantile(values, (0.5, 0.99))
        found |= {name: float(values.mean()), f"{name}_p50": p50, f"{name}_p99": p99}
    return found
