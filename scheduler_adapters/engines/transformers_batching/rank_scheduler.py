"""transformers' continuous batching with our policies: the engine that is wherever torch is.

    policy, hints = load_policy("pars"), {}
    config = ContinuousBatchingConfig(scheduler_type=use_policy(policy, hints), ...)
    manager = model.init_continuous_batching(continuous_batching_config=config)
    manager.start()
    require_ours(manager)
    hints["request 1"] = {"lengthwise_score": 217.5}
    manager.add_request(token_ids, request_id="request 1", max_new_tokens=300)

Policies that plan steps run as in vLLM, by the same planner. The engine sees only the residents and
the waiting requests of the planned step. Hints are passed in a dictionary of the caller's, by
request id, since the engine has no place for them.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from copy import deepcopy
from functools import partial
from math import inf
from typing import Any, Final

from lengthwise.errors import SchedulingError, UnsupportedByEngine
from scheduler_adapters.engines.transformers_batching.planner_view import (
    TransformersView,
    output_of,
    require_known_layout,
)
from scheduler_adapters.planner import capabilities
from scheduler_adapters.planner.late_scores import PromptScoring, late_score
from scheduler_adapters.planner.planner import Planner
from scheduler_adapters.planner.ranked_queue import RankedQueue, RankedRequest
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.planner.step_budget import Plan
from scheduler_adapters.policy import Policy
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import Capability

# Behind our own import of transformers, which says what to install where there is none.
from transformers.generation.continuous_batching.requests import RequestState  # isort: skip
from transformers.generation.continuous_batching.scheduler import (  # isort: skip
    SCHEDULER_MAPPING,
    FIFOScheduler,
)

Hints = MutableMapping[str, Mapping[str, Any]]

ENGINE: Final = "transformers"
CAPABILITIES: Final = frozenset({Capability.DEFER_RUNNING, Capability.EVICT})
"""CHUNK_LIMIT is missing: the engine has one token budget for all prefills of a step."""
_RUNS_AHEAD: Final = (
    "asynchronous batching schedules a step before the tokens of the last one are there; "
    "set use_async_batching=False, or use a policy that only orders the queue"
)

_numbers = itertools.count()


def use_policy(
    policy: Policy,
    hints: Hints,
    *,
    think_end: Sequence[int] = (),
    observers: Sequence[EngineObserver] = (),
    scoring: PromptScoring | None = None,
) -> str:
    """Register a scheduler with `policy`; return its `scheduler_type`.

    Args:
        hints: request id -> annotations (`request_annotations.py`); removed once it is queued.
        think_end: token ids that end thinking, for policies that rank by phase.
        observers: of the engine, without `measured`.
        scoring: ranker of the requests without a score, such as `BundleScoring(settings,
            tokenizer)`; the caller closes it.

    Raises:
        UnsupportedByEngine: the engine cannot run the policy, or its version is unknown.
        ConfigError: the policy ranks by phase, and there is no end of thinking.
    """
    require_known_layout()
    capabilities.require_capabilities(policy, CAPABILITIES, ENGINE)
    rule = capabilities.shape_of_first_step(policy)
    if rule.whole_prompts:
        raise UnsupportedByEngine(
            f"policy {policy.name!r} wants prompts whole, and transformers splits them wherever a "
            "step is too small; run it in vLLM or in the simulator"
        )
    if rule.chunk is not None and rule.max_prefills != 1:
        raise UnsupportedByEngine(
            f"policy {policy.name!r} limits each of several prefills to {rule.chunk} tokens, and "
            "transformers has one budget for all; use max_prefills=1, or run it in vLLM"
        )
    capabilities.require_think_end(policy, bool(think_end), "give think_end, a list of token ids")
    end = tuple(think_end) if policy.traits.sees_thinking else ()

    def make_tracker() -> RequestTracker:
        return RequestTracker(deepcopy(policy), observers=observers, think_end=end, scoring=scoring)

    name = f"lengthwise-{policy.name}-{next(_numbers)}"
    SCHEDULER_MAPPING[name] = partial(RankedScheduler, make_tracker=make_tracker, hints=hints)
    return name


def require_ours(manager: Any, *, timeout_s: float = 60.0) -> RankedScheduler:
    """Return our scheduler of a started manager; transformers falls back to FIFO without an error.

    `timeout_s`: most seconds until the manager's thread has made it. Raises UnsupportedByEngine:
    the manager runs another scheduler or none, or plans steps before the tokens of the last one.
    """
    until_s = time.monotonic() + timeout_s
    while manager.batch_processor is None and manager.is_running() and time.monotonic() < until_s:
        time.sleep(0.01)
    processor = manager.batch_processor
    scheduler = getattr(processor, "scheduler", None)
    if not isinstance(scheduler, RankedScheduler):
        status = getattr(manager, "background_thread_status", manager)
        raise UnsupportedByEngine(
            f"the manager runs {type(scheduler).__name__} (its error: {status.fatal_error}); "
            "start it, with scheduler_type from use_policy()"
        )
    if processor.use_async_batching and scheduler.follows_steps:
        raise UnsupportedByEngine(_RUNS_AHEAD)
    return scheduler


class RankedScheduler(FIFOScheduler):  # type: ignore[misc]
    """FIFO over the requests that the policy shows to it."""

    tracker: RequestTracker
    """Policy, load and counters of this engine."""
    active_requests: dict[str, RequestState]
    """The engine's own: its residents by id, in order of admission."""

    def __init__(
        self, *args: Any, make_tracker: Callable[[], RequestTracker], hints: Hints, **kwargs: Any
    ) -> None:
        self._make_tracker = make_tracker
        self._hints = hints
        super().__init__(*args, **kwargs)  # which calls reset()

    @property
    def follows_steps(self) -> bool:
        """Return whether a step's tokens are needed before the next step is scheduled."""
        return self.planner is not None or bool(self.tracker.events.observers)

    def reset(self) -> None:
        super().reset()
        self.tracker = self._make_tracker()
        self.planner: Planner[RequestState] | None = None
        self._queue: RankedQueue[RequestState] = RankedQueue(self.tracker.shares)
        if capabilities.plans_steps(self.tracker.policy):
            self.planner = Planner(self.tracker, TransformersView(self), self._queue)
        self._running: Sequence[Any] = ()
        """The requests of a step that has not ended yet."""
        self._step_start_s = 0.0
        self._left: dict[str, RequestState] = {}
        """Residents that finished, or lost their blocks, since a step ended."""
        self._stalled = False

    def score_arrived(self, request_id: str, hints: Mapping[str, Any]) -> None:
        """Queue the score of a request that was added without one, to be used by the next step.

        Any thread may call this. `hints` holds the score and optionally its quantiles, with the
        keys of `request_annotations.py`. An unusable score is ignored.
        """
        if (late := late_score(request_id, hints)) is not None:
            self.tracker.late_scores.inbox.append(late)

    # The engine's loop: new requests, cancelled ones, schedule_batch, the step itself, and then
    # finish_request for each finished request. So a step has ended when the next turn begins.

    def add_waiting_request(self, state: RequestState) -> None:
        sequences = [state]
        if state.is_cpu_offloaded or state._true_initial_tokens:
            # A resident that lost its blocks; it may return as another object.
            tracked: RankedRequest = self._left.pop(state.request_id).lengthwise
            state.lengthwise = tracked
            self.tracker.requeue(
                tracked,
                generated_tokens=len(output_of(state)),
                preemptions=tracked.view.preemptions + 1,
            )
        else:
            self._end_step()
            carried, sequences = self._hints.pop(state.request_id, None), _sequences(state)
            used = self.active_requests.keys() | self.waiting_requests.keys()
            if any(each.request_id in used for each in sequences):
                raise SchedulingError(
                    f"id {state.request_id!r} is in use; give the request another"
                )
            for each in sequences:
                each.lengthwise = self.tracker.track(
                    each.request_id,
                    age_s=time.perf_counter() - state.created_time,
                    prompt_tokens=len(state.initial_tokens),
                    carried=carried,
                    prompt=state.initial_tokens,
                    key=state.request_id,
                    limits=_limits(each),
                )
        for each in sequences:
            super().add_waiting_request(each)
            self._queue.add(each)

    def clear_cancelled_requests(self) -> Any:
        self._end_step()
        cancelled = super().clear_cancelled_requests()
        # After an eviction of its own the engine admits no request until a resident has left.
        self.block_new_requests &= not cancelled
        for state in cancelled:
            self._queue.remove(state.lengthwise.view.number)
            if self.tracker.shares is not None:
                self.tracker.shares.leaves(state.lengthwise.view)
            self.tracker.late_scores.forget(state.request_id)
            if self.planner is not None:
                self.planner.residents.left(state)
            self.tracker.events.tell("withdrawn", state.lengthwise.view, self.tracker.clock())
        return cancelled

    def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
        active = len(self.active_requests)
        self._step_start_s = self.tracker.begin_step(
            self._queue,
            num_free=self.max_requests_per_batch - active,
            num_tokens=token_budget - active,
            is_idle=not active,
        )
        batch = None
        if self.planner is not None and not self._stalled:
            batch = self._schedule_plan(self.planner.plan(), cache_budget)
        if batch is None or not batch[0]:
            # No plan, or the engine has a reason to run none of it: then it sees all requests. It
            # would take an empty batch for the end of its work.
            if self.planner is not None:
                self.planner.residents.left_out.clear()
            most = self._queue.first_few(self.max_requests_per_batch)
            batch = self._schedule(most, token_budget, cache_budget)
        self._stalled = batch[0] is None
        self._running = batch[0] or ()
        return batch

    def finish_request(self, request_id: str) -> None:
        state = self.active_requests.get(request_id)
        super().finish_request(request_id)
        self.tracker.late_scores.forget(request_id)
        if state is not None:
            self.tracker.finished(state.lengthwise, len(output_of(state)))
            self._left[request_id] = state
            if self.planner is not None:
                self.planner.residents.left(state)  # the engine finishes evicted requests too

    def _schedule_plan(self, plan: Plan[RequestState] | None, cache_budget: int) -> Any:
        """Schedule the planned residents, while the others are put aside with their blocks."""
        if plan is None or not plan.num_tokens:
            return None
        left_out = {state.request_id for state in plan.left_out}
        residents = self.active_requests
        shown = {name: state for name, state in residents.items() if name not in left_out}
        if plan.last is not None:
            shown[plan.last.request_id] = shown.pop(plan.last.request_id)
        if plan.chunk is not None:
            # As in `use_policy`, for a policy whose later rules differ from its first.
            states = [*shown.values(), *plan.admitted]
            prefills = [size for each in states if (size := len(each.remaining_prefill_tokens))]
            if len(prefills) > 1 and max(prefills) > plan.chunk:
                raise UnsupportedByEngine(
                    f"policy {self.tracker.policy.name!r} now limits each of {len(prefills)} "
                    f"prefills to {plan.chunk} tokens; give its step rule max_prefills=1"
                )
        self.active_requests = shown
        try:
            return self._schedule(plan.admitted, plan.num_tokens, cache_budget)
        finally:
            self.active_requests = residents | self.active_requests

    def _schedule(self, offered: list[RequestState], token_budget: int, cache_budget: int) -> Any:
        self.waiting_requests_order = deque(state.request_id for state in offered)
        batch = super().schedule_batch(token_budget, cache_budget)
        for state in offered:
            if state.request_id in self.active_requests:
                self._queue.remove(state.lengthwise.view.number)
                if self.tracker.shares is not None:
                    self.tracker.shares.starts(state.lengthwise.view, _counter(state))
                if self.planner is not None:
                    self.planner.residents.admitted(state)
                else:
                    self.tracker.started(state.lengthwise.view)
                self.tracker.admitted(state.lengthwise, self._step_start_s)
        return batch

    def _end_step(self) -> None:
        if not self._running:
            return
        # A scheduler of `generate_batch` learns only here that its engine is asynchronous.
        fresh = [one.state for one in self._running if one.has_new_token]
        if self.follows_steps and any(
            state.request_id in self.active_requests and not state.generated_tokens
            for state in fresh
        ):
            raise UnsupportedByEngine(_RUNS_AHEAD)
        tracker = self.tracker
        tracker.end_step(self._step_start_s)
        now_s = tracker.load.now_s
        if tracker.events.observers and fresh:
            views = [state.lengthwise.view for state in fresh]
            tracker.events.emitted(views, list(map(output_of, fresh)), [1] * len(fresh), now_s)
        for state in self._left.values():
            tracker.events.tell("finished", state.lengthwise.view, now_s)
            if tracker.shares is not None:
                tracker.shares.leaves(state.lengthwise.view)
        tracker.events.tell("stepped", now_s)
        self._running = ()
        self._left.clear()
        if self.planner is not None:
            self.planner.residents.step_ended()


def _limits(state: RequestState) -> tuple[float, float]:
    """Return the least and the most output tokens; without an end of sequence these are equal."""
    most = inf if state.max_new_tokens is None else state.max_new_tokens
    return 0 if state._eos_token_ids else most, most


def _counter(state: RequestState) -> Callable[[], int]:
    return lambda: len(output_of(state))


def _sequences(state: RequestState) -> list[RequestState]:
    """Split a request by sequences; the engine would fork a resident, without rank and seat."""
    num_children, state.num_children = state.num_children, 0
    children = [deepcopy(state) for _ in range(num_children)]
    for number, child in enumerate(children):
        child.request_id = f"{state.request_id}__child#{number}"  # as the engine names them
    return [state, *children]
