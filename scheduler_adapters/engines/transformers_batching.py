"""transformers' continuous batching with our policies: the engine that is wherever torch is.

    hints: dict[str, dict[str, float]] = {}
    config = ContinuousBatchingConfig(scheduler_type=use_policy(pars(), hints), ...)
    manager = model.init_continuous_batching(continuous_batching_config=config)
    hints["request 1"] = {"lengthwise_score": 217.5}
    manager.add_request(token_ids, request_id="request 1", max_new_tokens=300)
    manager.start()
    require_ours(manager)

A policy orders the waiting requests; running ones keep the engine's order, so policies that plan
steps are refused. Hints travel in a dictionary of the caller's, by request id: the engine has no
place for them, but keeps the ids. Written against transformers 5.19.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from scheduler_adapters.engines.ranking import RankedQueue, Ranker, Tracked
from scheduler_adapters.engines.settings import plans_steps
from scheduler_adapters.policy import Policy
from scheduler_adapters.views import Phase
from scoring_service.errors import UnsupportedByEngine

try:
    from transformers.generation.continuous_batching.scheduler import (
        SCHEDULER_MAPPING,
        FIFOScheduler,
    )
except ImportError as error:
    raise UnsupportedByEngine(
        f"transformers' continuous batching cannot be imported ({error}); install transformers 5.19"
    ) from error

Hints = MutableMapping[str, Mapping[str, Any]]

_numbers = itertools.count()
_NEEDED: Final = ("schedule_batch", "add_waiting_request", "finish_request", "reset")


def use_policy(policy: Policy, hints: Hints) -> str:
    """Register a scheduler under `policy`; the `scheduler_type` that asks for it.

    Args:
        hints: request id -> what the request carries (`hints.py` names the keys). Taken out once
            the request is queued.

    Raises:
        UnsupportedByEngine: the policy cares which running requests are served, or this version
            of transformers is laid out otherwise.
    """
    if plans_steps(policy):
        raise UnsupportedByEngine(
            f"policy {policy.name!r} plans steps, and transformers lets us order its queue only; "
            "run it in vLLM or in the simulator"
        )
    if lacking := [name for name in _NEEDED if not hasattr(FIFOScheduler, name)]:
        raise UnsupportedByEngine(
            f"transformers' FIFOScheduler has no {', '.join(lacking)}; use transformers 5.19"
        )

    class Ours(RankedScheduler):
        def _make_ranker(self) -> tuple[Ranker, Hints]:
            return Ranker(policy), hints

    name = f"lengthwise-{policy.name}-{next(_numbers)}"
    SCHEDULER_MAPPING[name] = Ours
    return name


def require_ours(manager: Any) -> RankedScheduler:
    """The scheduler of a started manager; transformers falls back to FIFO without an error.

    Raises:
        UnsupportedByEngine: the manager runs another scheduler.
    """
    processor = getattr(manager, "batch_processor", None)
    scheduler = getattr(processor, "scheduler", None)
    if not isinstance(scheduler, RankedScheduler):
        raise UnsupportedByEngine(
            f"the manager runs {type(scheduler).__name__}; start it, with scheduler_type from "
            "use_policy()"
        )
    return scheduler


class RankedScheduler(FIFOScheduler):  # type: ignore[misc]
    """FIFO, but for the order of the queue."""

    def reset(self) -> None:
        super().reset()
        self.lengthwise, self._hints = self._make_ranker()
        self._queue: RankedQueue[str] = RankedQueue()
        self._tracked: dict[str, Tracked] = {}

    def add_waiting_request(self, state: Any) -> None:
        super().add_waiting_request(state)
        name, ranker = state.request_id, self.lengthwise
        tracked = self._tracked.get(name)
        if tracked is None:
            tracked = self._tracked[name] = ranker.track(
                name,
                age_s=time.perf_counter() - state.created_time,
                prompt_tokens=len(state.initial_tokens),
                carried=self._hints.pop(name, None),
            )
        else:  # it lost its blocks
            tracked.view.phase = Phase.WAITING
            tracked.view.preemptions += 1
            ranker.load.now_s = ranker.clock()
            ranker.rerank(tracked)
        self._queue.add(name, tracked.view.number, tracked.rank)

    def schedule_batch(self, *args: Any, **kwargs: Any) -> Any:
        self._forget_started()
        ranker = self.lengthwise
        ranker.load.now_s = ranker.clock()
        for name in self._queue.pop_expired(ranker.load.now_s):
            tracked = self._tracked[name]
            ranker.expire(tracked)
            self._queue.add(name, tracked.view.number, tracked.rank)
        self.waiting_requests_order = deque(self._queue)
        return super().schedule_batch(*args, **kwargs)

    def finish_request(self, request_id: str) -> None:
        super().finish_request(request_id)
        self._tracked.pop(request_id, None)

    def clear_cancelled_requests(self) -> Any:
        cancelled = super().clear_cancelled_requests()
        for state in cancelled:
            tracked = self._tracked.pop(state.request_id, None)
            if tracked is not None:
                self._queue.remove(tracked.view.number)
        return cancelled

    def _forget_started(self) -> None:
        """Take those out of our queue that the engine has taken out of its own."""
        for name in [name for name in self._queue if name not in self.waiting_requests]:
            self._queue.remove(self._tracked[name].view.number)

    def _make_ranker(self) -> tuple[Ranker, Hints]:
        raise NotImplementedError("made by use_policy()")
