"""Serves a trace with vLLM in this process and writes down all that a simulator can be held to.

When each token came, what each step held and how long it took, and whom the scheduler admitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from scheduler_adapters.engines.engine_clock import EngineClock
from scheduler_adapters.engines.vllm_v1.offline import random_prompts, scheduler_of, serve
from scheduler_adapters.timeline.steps import Chunk, StepRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.validation.decision_replay import Admitted, Queued, snapshot
from scheduler_adapters.workload.requests import Requests


@dataclass(frozen=True)
class Recording:
    """What the engine did with some requests."""

    timeline: Timeline
    steps: Sequence[StepRecord]
    decisions: Sequence[Queued | Admitted]
    """Empty under vLLM's own scheduler."""


def record(engine: Any, requests: Requests, *, clock: EngineClock, seed: int) -> Recording:
    """Serve the requests as they arrive.

    Args:
        engine: from `open_engine`, idle.
        clock: restarted here; the seconds of all that is recorded.
        seed: of the prompts.
    """
    prompts = random_prompts(requests, seed)
    with _watched(scheduler_of(engine)) as watch:
        timeline, _ = serve(engine, requests, prompts, clock, stepped=watch.stepped)
    return Recording(timeline, watch.steps, watch.decisions)


class _Watch:
    """Collects the size of each step that a scheduler makes, and whom it admits."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._waiting: dict[str, int] = {}
        """The engine's id of a request -> its number."""
        self._sizes: list[StepRecord] = []
        self.steps: list[StepRecord] = []
        self.decisions: list[Queued | Admitted] = []

    def queued(self, request_id: str) -> None:
        """A request waits from now on."""
        if (ranker := getattr(self._scheduler, "lengthwise", None)) is not None:
            view = self._scheduler.requests[request_id].lengthwise.view
            self._waiting[request_id] = view.number
            self.decisions.append(snapshot(view, ranker.load))

    def scheduled(self, output: Any) -> None:
        """The scheduler made a step; empty ones are left out."""
        for request_id in output.preempted_req_ids or ():
            self.queued(request_id)
        if output.num_scheduled_tokens:
            self._sizes.append(_size(self._scheduler, output.num_scheduled_tokens))
        # The engine fills this table in the order in which it admits.
        started = [name for name in output.num_scheduled_tokens if name in self._waiting]
        if started:
            numbers = tuple(self._waiting.pop(name) for name in started)
            self.decisions.append(Admitted(numbers, replace(self._scheduler.lengthwise.load)))

    def stepped(self, seconds: float) -> None:
        """The step has ended."""
        self.steps += [replace(size, seconds=seconds) for size in self._sizes]
        self._sizes.clear()


@contextmanager
def _watched(scheduler: Any) -> Iterator[_Watch]:
    watch, schedule, add_request = _Watch(scheduler), scheduler.schedule, scheduler.add_request

    def watched_schedule(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        watch.scheduled(output)
        return output

    def watched_add_request(request: Any) -> None:
        add_request(request)
        watch.queued(request.request_id)

    scheduler.schedule, scheduler.add_request = watched_schedule, watched_add_request
    try:
        yield watch
    finally:
        del scheduler.schedule, scheduler.add_request


def _size(scheduler: Any, scheduled: Mapping[str, int]) -> StepRecord:
    num_decodes = decode_context = 0
    prefills: list[Chunk] = []
    for request_id, tokens in scheduled.items():
        request = scheduler.requests[request_id]
        before = request.num_computed_tokens - tokens  # the engine has counted the step already
        if before >= request.num_prompt_tokens and tokens == 1:
            num_decodes += 1
            decode_context += before + 1
        else:
            prefills.append((before, tokens))
    return StepRecord.of(num_decodes, decode_context, prefills)
