"""vLLM V1 with our policies: `--scheduler-cls scheduler_adapters.engines.vllm_v1.pars`.

Or with any policy, by name or import path:

    LLM(MODEL, scheduler_cls="scheduler_adapters.engines.vllm_v1.scheduler",
        additional_config={"lengthwise": {"policy": "my_package.policies:ShortestPrompt"}})

With `"bundle": PATH` beside the policy the engine scores its prompts itself (`bundle_scoring.py`).
A queue in rank order, with the engine's own queue interface, replaces the waiting queue. For a
policy that restricts running requests, a `Planner` plans each step. The plan reaches the engine
through attributes that it reads in each step: a request that is left out is not eligible, budget
and seats are lowered for the call. Under `--scheduling-policy priority` a request's own priority
precedes its rank everywhere.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

import lengthwise
from scheduler_adapters.engines.bundle_scoring import BundleScoring
from scheduler_adapters.engines.engine_metrics import observers_from_environment
from scheduler_adapters.engines.engine_sockets import EngineSocket
from scheduler_adapters.engines.quality.rank_watch import RankWatch
from scheduler_adapters.engines.score_channel import receiver_from_environment
from scheduler_adapters.engines.vllm_v1 import TESTED
from scheduler_adapters.engines.vllm_v1.additional_config import (
    configured_bundle,
    configured_policy,
    configured_think_end,
)
from scheduler_adapters.engines.vllm_v1.features import require_features
from scheduler_adapters.engines.vllm_v1.planner_view import VllmView, undecided
from scheduler_adapters.engines.vllm_v1.rank_queue import RankQueue, number_of
from scheduler_adapters.engines.vllm_v1.versions import (
    AsyncScheduler,
    Request,
    RequestStatus,
    Scheduler,
    __version__,
    layout_of,
    parsed_think_end,
    require_layout,
    tokenizer_of,
)
from scheduler_adapters.planner.capabilities import (
    plans_steps,
    require_capabilities,
    require_think_end,
)
from scheduler_adapters.planner.planner import Planner
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.planner.step_budget import Plan
from scheduler_adapters.policies.fcfs import FCFS, ArrivalFallback
from scheduler_adapters.policy import Policy, PolicyWrapper
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import Capability

log = logging.getLogger("vllm.lengthwise")  # the log that people read

ENGINE: Final = "vLLM"
CAPABILITIES: Final = frozenset(
    {Capability.DEFER_RUNNING, Capability.EVICT, Capability.CHUNK_LIMIT, Capability.PREFIX_HITS}
)
"""Capabilities beyond ordering the queue. OFFLOAD would need a KV connector."""
_ABORTED: Final = RequestStatus.FINISHED_ABORTED


class RankMixin:
    """vLLM's scheduler, sync or async, under a policy; reports events to observers."""

    lengthwise_tracker = RequestTracker(FCFS())
    """Policy, load and counters of this engine; FCFS for one made without its constructor."""
    _lengthwise_planner: Planner[Request] | None = None
    _lengthwise_step_start_s = 0.0
    vllm_config: Any
    waiting: RankQueue
    _lengthwise_holders = RankQueue(lengthwise_tracker)
    """Waiting requests that hold KV blocks."""
    _lengthwise_receiver: EngineSocket | None = None
    _lengthwise_stalled = False
    _lengthwise_own: Sequence[EngineObserver] = ()
    _lengthwise_watch: RankWatch | None = None
    _lengthwise_scoring: BundleScoring | None = None

    def __init__(self, *args: Any, lengthwise_policy: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        require_layout(self)
        policy = configured_policy(self.vllm_config.additional_config, lengthwise_policy)
        require_capabilities(policy, CAPABILITIES, ENGINE)
        if (settings := configured_bundle(self.vllm_config.additional_config)) is not None:
            scoring = BundleScoring(settings, tokenizer_of(self.vllm_config))
            self._lengthwise_scoring = scoring
            fallback = None if settings.keep_order else ArrivalFallback(policy)
            self._lengthwise_watch = RankWatch(
                lambda: scoring.model.manifest,
                fallback,
                target_model=settings.target_model,
                reads_lengths=policy.traits.reads_lengths,
            )
            self._lengthwise_own, policy = [self._lengthwise_watch], fallback or policy
        observers = observers_from_environment(self, thinks=bool(think_end_of(self)))
        self._lengthwise_own = [*self._lengthwise_own, *observers]
        self.lengthwise_start(policy, observers=self._lengthwise_own)
        self._lengthwise_receiver = receiver_from_environment(
            self.vllm_config.parallel_config.data_parallel_rank,
            lambda late: self.lengthwise_tracker.late_scores.inbox.append(late),
        )
        log.info(
            "Lengthwise serves: %s. vLLM's warning about a custom scheduler is about this one, "
            "which is tested with vLLM %s",
            ", ".join(f"{name} {value}" for name, value in self.lengthwise_info().items()),
            TESTED,
        )

    def lengthwise_info(self) -> dict[str, str]:
        """Return by name what is served now; `limits` are the settings of policy and guard."""
        policy, scoring = self.lengthwise_tracker.policy, self._lengthwise_scoring
        settings, inner = vars(policy), policy
        while isinstance(inner, PolicyWrapper):
            inner = inner.policy
            settings = vars(inner) | settings
        limits = [f"{k} {v}" for k, v in settings.items() if type(v) in (int, float)]
        return {
            "version": lengthwise.__version__,
            "vllm": __version__,
            "policy": policy.name,
            "limits": ", ".join(limits),
            "shares": str(policy.traits.shares),
            **({"ranker": "none"} if scoring is None else scoring.info),
        }

    def lengthwise_start(self, policy: Policy, *, observers: Sequence[EngineObserver] = ()) -> None:
        """Start to schedule by `policy`, in an engine without requests, reporting to observers."""
        end = think_end_of(self)
        by_priority = self.vllm_config.scheduler_config.policy == "priority"
        tracker = RequestTracker(
            policy,
            observers=observers,
            by_priority=by_priority,
            think_end=end,
            scoring=self._lengthwise_scoring,
        )
        self.lengthwise_tracker, waiting = tracker, RankQueue(tracker)
        holders = self._lengthwise_holders = RankQueue(tracker, waiting)
        self.waiting = waiting
        layout = layout_of(self)
        setattr(self, layout.second_queue, holders)
        self._lengthwise_seats = layout.seats
        self._lengthwise_left: dict[str, Request] = {}
        """Requests that left the engine since the last report to the observers."""
        self._lengthwise_planner, self._lengthwise_stalled = None, False
        require_features(self.vllm_config, policy)
        if Capability.PREFIX_HITS in policy.traits.requires:
            waiting.memory = VllmView(self)
        if plans_steps(policy):
            require_think_end(
                policy,
                bool(end),
                "start vLLM with --reasoning-parser, or put think_end (token ids) in our settings",
            )
            planner = Planner(tracker, VllmView(self), waiting.queue)
            self._lengthwise_planner = waiting.planner = holders.planner = planner

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        tracker, planner = self.lengthwise_tracker, self._lengthwise_planner
        running: Sequence[Request] = self.running  # type: ignore[attr-defined]
        self._lengthwise_step_start_s = tracker.begin_step(
            self.waiting.queue,
            self._lengthwise_holders.queue,
            num_free=getattr(self, self._lengthwise_seats) - len(running),
            num_tokens=self.max_num_scheduled_tokens - len(running),  # type: ignore[attr-defined]
            is_idle=not running,
        )
        plan = None
        if planner is not None:
            own = self._lengthwise_stalled or getattr(self, "pause_state", False)
            plan = None if own else planner.plan()
        limits = _limit(self, plan) if plan is not None and plan.num_tokens else None
        if planner is not None and limits is None:
            planner.residents.left_out.clear()
        try:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            if limits is not None:
                _unlimit(self, *limits)
        self._lengthwise_admit(output)
        # The engine may schedule nothing for a reason unknown to the plan (a grammar that
        # compiles, a block counted otherwise). Then the next step is its own.
        self._lengthwise_stalled = limits is not None and not output.total_num_scheduled_tokens
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if (planner := self._lengthwise_planner) is not None:
            for request in self._lengthwise_holders:  # a session between two turns
                planner.residents.left(request)
            if scheduler_output.total_num_scheduled_tokens:
                self.lengthwise_tracker.end_step(self._lengthwise_step_start_s)
                # Without speculation, which is refused, each request has at most one token.
                last, sampled = planner.residents.think_end[-1:], model_runner_output
                may_end = bool(last) and list(last) in sampled.sampled_token_ids
                planner.residents.step_ended(thinking_may_end=may_end)
        if self.lengthwise_tracker.events.observers:
            self._lengthwise_report(outputs)
        return outputs

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        if self._lengthwise_receiver is not None:
            self._lengthwise_receiver.close()
        if self._lengthwise_scoring is not None:
            self._lengthwise_scoring.close()
        for observer in dict.fromkeys(
            [*self._lengthwise_own, *self.lengthwise_tracker.events.observers]
        ):
            observer.close()

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        tracker = self.lengthwise_tracker
        if (planner := self._lengthwise_planner) is not None:
            planner.residents.left(request)
        if hasattr(request, "lengthwise"):
            request.lengthwise.view.generated_tokens = request.num_output_tokens
            if request.status is not _ABORTED:
                tracker.finished(request.lengthwise, request.num_output_tokens)
            if tracker.shares is not None:
                tracker.shares.leaves(request.lengthwise.view)
        if tracker.events.observers:
            self._lengthwise_left[request.request_id] = request
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _lengthwise_admit(self, output: Any) -> None:
        tracker, planner = self.lengthwise_tracker, self._lengthwise_planner
        resumed = self._lengthwise_holders.take_admitted()
        for request in resumed:
            ranked = request.lengthwise
            ranked.view.prompt_tokens = request.num_prompt_tokens
            if not request.num_output_tokens:  # a session's next turn
                prompt = request.prompt_token_ids or ()
                ranked.thinking_over = tracker.events.ends_prompt_thinking(prompt)
                ranked.view.thinking_tokens = 0
        for request in self.waiting.take_admitted() + resumed:
            if planner is not None:
                planner.residents.admitted(request)
            else:
                tracker.started(request.lengthwise.view)
            if tracker.shares is not None and not request.num_preemptions:
                scheduled = output.num_scheduled_tokens.get(request.request_id, 0)
                cached = request.num_computed_tokens - scheduled
                tracker.shares.hit(request.lengthwise.view, cached)
            tracker.admitted(request.lengthwise, self._lengthwise_step_start_s)

    def _lengthwise_report(self, outputs: Any) -> None:
        """Report to the observers the tokens of a step, and the requests that have left since."""
        engine: Any = self
        events, left = self.lengthwise_tracker.events, self._lengthwise_left
        now_s = self.lengthwise_tracker.clock()
        answers = [one for each in outputs.values() for one in each.outputs if one.new_token_ids]
        if answers:
            requests = engine.requests
            fresh = [left.get(one.request_id) or requests[one.request_id] for one in answers]
            events.emitted(
                [request.lengthwise.view for request in fresh],
                [request._output_token_ids for request in fresh],
                [len(one.new_token_ids) for one in answers],
                now_s,
            )
        if left:
            ended = {one.request_id for each in outputs.values() for one in each.outputs}
            for name, request in left.items():
                event = "finished" if name in ended else "withdrawn"
                events.tell(event, request.lengthwise.view, now_s)
            left.clear()
        events.tell("stepped", now_s)


def _limit(scheduler: Any, plan: Plan[Request]) -> tuple[int, int, bool]:
    """Make the engine's next step the planned one; return its own limits, for `_unlimit`."""
    # schedule() counts the step before it compares: this is the one after the coming step.
    eligible = scheduler.current_step + 2
    for request in plan.left_out:
        if request.next_decode_eligible_step < eligible:
            request.next_decode_eligible_step = eligible
    if plan.last is not None:
        scheduler.running.remove(plan.last)
        scheduler.running.append(plan.last)
    config = scheduler.scheduler_config
    adapts = getattr(scheduler, "adaptive_long_prefill_threshold", False)
    own = scheduler.max_num_scheduled_tokens, config.long_prefill_token_threshold, adapts
    scheduler.max_num_scheduled_tokens = plan.num_tokens
    if plan.chunk is not None:
        config.long_prefill_token_threshold = plan.chunk
        scheduler.adaptive_long_prefill_threshold = False
    waiting, holding = scheduler.waiting, scheduler._lengthwise_holders
    waiting.offered, holding.offered = plan.admitted[::-1], []
    if holding.queue:
        holding.offered = [one for one in waiting.offered if number_of(one) in holding.queue]
        waiting.offered = [one for one in waiting.offered if number_of(one) in waiting.queue]
    if scheduler.connector is not None:
        others = undecided(scheduler).difference(plan.admitted)
        waiting.offered += sorted(others, key=number_of, reverse=True)
    return own


def _unlimit(scheduler: Any, tokens: int, threshold: int, adapts: bool) -> None:
    scheduler.max_num_scheduled_tokens = tokens
    scheduler.scheduler_config.long_prefill_token_threshold = threshold
    scheduler.adaptive_long_prefill_threshold = adapts
    scheduler.waiting.offered = scheduler._lengthwise_holders.offered = None


class RankScheduler(RankMixin, Scheduler):  # type: ignore[misc]
    """vLLM's synchronous scheduler under a policy."""


class AsyncRankScheduler(RankMixin, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler under a policy. It sees each token one step late."""


def scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> RankScheduler | AsyncRankScheduler:
    """Make the synchronous or the asynchronous scheduler, as vLLM is configured."""
    made = AsyncRankScheduler if vllm_config.scheduler_config.async_scheduling else RankScheduler
    return made(*args, vllm_config=vllm_config, **kwargs)


def think_end_of(scheduler: Any) -> tuple[int, ...]:
    """Return the token ids that end thinking, from our settings or vLLM's reasoning parser.

    Empty if neither has them. Raises ConfigError for settings that are no token ids.
    """
    config = scheduler.vllm_config
    return configured_think_end(config.additional_config) or parsed_think_end(config)
