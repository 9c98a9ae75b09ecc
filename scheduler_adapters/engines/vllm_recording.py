"""Serves a trace with vLLM in this process and writes down all that a simulator can be held to.

When each token came, what each step held and how long it took, and whom the scheduler admitted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from scheduler_adapters.engines.decision_replay import Admitted, Queued, snapshot
from scheduler_adapters.engines.engine_clock import EngineClock
from scheduler_adapters.engines.hints import hints_of
from scheduler_adapters.engines.step_fit import StepRecord
from scheduler_adapters.engines.vllm_offline import (
    add_request,
    random_prompts,
    scheduler_of,
)
from scheduler_adapters.experiments.timeline import Timeline, timeline_from_token_times
from scheduler_adapters.experiments.workload import Requests


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
        seed: of the prompts. Two recordings of one engine need two: equal prompts would find each
            other's KV blocks cached.
    """
    prompts, scheduler = random_prompts(requests, seed), scheduler_of(engine)
    ranker = getattr(scheduler, "lengthwise", None)
    if ranker is not None:
        ranker.clock = clock
    clock.restart()
    token_s: list[list[float]] = [[] for _ in range(len(requests))]
    steps: list[StepRecord] = []
    added, busy_since_s = 0, clock()
    with _watched(scheduler) as watch:
        while added < len(requests) or engine.has_unfinished_requests():
            if not engine.has_unfinished_requests():
                clock.wait_until(requests.arrival_s[added])
                busy_since_s = clock()
            while added < len(requests) and requests.arrival_s[added] <= clock():
                add_request(
                    engine,
                    str(added),
                    prompts[added],
                    int(requests.output_tokens[added]),
                    arrival_time=time.time() - (clock() - requests.arrival_s[added]),
                    extra_args=hints_of(requests, added),
                )
                watch.queued(list(scheduler.requests)[-1])
                added += 1
            clock.note_speed()
            outputs = engine.step()
            now_s = clock()
            steps += [replace(size, seconds=now_s - busy_since_s) for size in watch.sizes]
            watch.sizes.clear()
            busy_since_s = now_s
            for output in outputs:
                new = len(output.outputs[0].token_ids)
                token_s[int(output.request_id)] += [now_s] * new
    return Recording(timeline_from_token_times(requests, token_s), steps, watch.decisions)


class _Watch:
    """Collects the size of each step that a scheduler makes, and whom it admits."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._ranker = getattr(scheduler, "lengthwise", None)
        self._waiting: dict[str, int] = {}
        """The engine's id of a request -> its number."""
        self.sizes: list[StepRecord] = []
        self.decisions: list[Queued | Admitted] = []

    def queued(self, request_id: str) -> None:
        """A request waits from now on."""
        if self._ranker is not None:
            view = self._scheduler.requests[request_id].lengthwise.view
            self._waiting[request_id] = view.number
            self.decisions.append(snapshot(view, self._ranker.load))

    def scheduled(self, output: Any) -> None:
        """The scheduler made a step; empty ones are left out."""
        for request_id in output.preempted_req_ids or ():
            self.queued(request_id)
        if output.num_scheduled_tokens:
            self.sizes.append(_size(self._scheduler, output.num_scheduled_tokens))
        # The engine fills this table in the order in which it admits.
        started = [name for name in output.num_scheduled_tokens if name in self._waiting]
        if started and self._ranker is not None:
            numbers = tuple(self._waiting.pop(name) for name in started)
            self.decisions.append(Admitted(numbers, replace(self._ranker.load)))


@contextmanager
def _watched(scheduler: Any) -> Iterator[_Watch]:
    watch, schedule = _Watch(scheduler), scheduler.schedule

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        watch.scheduled(output)
        return output

    scheduler.schedule = watched
    try:
        yield watch
    finally:
        del scheduler.schedule


def _size(scheduler: Any, scheduled: Mapping[str, int]) -> StepRecord:
    num_decodes = decode_context = num_prefills = prefill_tokens = 0
    pairs = 0.0
    for request_id, tokens in scheduled.items():
        request = scheduler.requests[request_id]
        before = request.num_computed_tokens - tokens  # the engine has counted the step already
        if before >= request.num_prompt_tokens and tokens == 1:
            num_decodes += 1
            decode_context += before + 1
        else:
            num_prefills += 1
            prefill_tokens += tokens
            pairs += tokens * (before + tokens / 2)
    return StepRecord(num_decodes, decode_context, num_prefills, prefill_tokens, pairs, 0.0)
