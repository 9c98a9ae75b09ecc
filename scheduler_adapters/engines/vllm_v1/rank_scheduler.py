"""vLLM V1 with our policies: `--scheduler-cls scheduler_adapters.engines.vllm_v1.pars`.

Every policy of `scheduler_adapters.policy.POLICIES` has a factory in this package, which picks the
synchronous or the asynchronous scheduler. The policy's settings travel to the engine process in
vLLM's `additional_config`, which may also name the policy, ours or an import path:

    python -m vllm.entrypoints.openai.api_server --model MODEL \\
        --scheduler-cls scheduler_adapters.engines.vllm_v1.pars \\
        --additional-config '{"lengthwise": {"starve_after_s": 60}}'

    LLM(MODEL, scheduler_cls="scheduler_adapters.engines.vllm_v1.scheduler",
        additional_config={"lengthwise": {"policy": "my_package.policies:ShortestPrompt"}})

Nothing of the engine's `schedule()` is copied. The waiting queue is replaced by one in rank order,
behind the engine's own queue interface. For a policy that also cares which running requests are
served, `planner.py` decides before each step, and the engine is told by what it reads anyway: a
request to leave out is not eligible in this step, budget and seats are lowered for the call. Our
state hangs on the engine's `Request` and dies with it. Under `--scheduling-policy priority` a
request's own priority goes before its rank, in the queue, in a step and in eviction. `versions.py`
has what the versions of vLLM do not have in common; an unknown layout is refused.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from scheduler_adapters.engines.engine_metrics import observers_from_environment
from scheduler_adapters.engines.score_channel import ScoreReceiver, receiver_from_environment
from scheduler_adapters.engines.vllm_v1.additional_config import (
    configured_policy,
    configured_think_end,
)
from scheduler_adapters.engines.vllm_v1.features import require_features
from scheduler_adapters.engines.vllm_v1.kv_memory import VllmMemory
from scheduler_adapters.engines.vllm_v1.versions import (
    AsyncScheduler,
    Request,
    RequestQueue,
    RequestStatus,
    Scheduler,
    holds_blocks,
    layout_of,
    parsed_think_end,
    preempt,
    probe_classes,
    require_layout,
    use_queues,
)
from scheduler_adapters.planner.capabilities import (
    plans_steps,
    require_capabilities,
    require_think_end,
)
from scheduler_adapters.planner.planner import Planner
from scheduler_adapters.planner.ranking import RankedQueue, Ranker, Tracked, ends_thinking
from scheduler_adapters.planner.step_budget import Plan
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import Policy
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import Capability, Phase

ENGINE: Final = "vLLM"
CAPABILITIES: Final = frozenset(
    {Capability.DEFER_RUNNING, Capability.EVICT, Capability.CHUNK_LIMIT}
)
"""Capabilities beyond ordering the queue. OFFLOAD would need a KV connector."""
_RUNNING: Final = RequestStatus.RUNNING
_READY: Final = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
_COMPILING: Final = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
_BETWEEN_TURNS: Final = RequestStatus.WAITING_FOR_STREAMING_REQ


class RankQueue(RequestQueue):  # type: ignore[misc]
    """vLLM's waiting queue in rank order.

    The engine prepends a preempted request, which is ranked anew, and requests that it could not
    start in this step (a grammar still compiling, ...), which go back to where they stood.
    """

    def __init__(self, ranker: Ranker) -> None:
        self._ranker = ranker
        self.queue: RankedQueue[Request] = RankedQueue()
        self.planner: Planner[Request] | None = None
        self.offered: list[Request] | None = None
        """While a planned step is scheduled: all that the engine gets to see, the next one last."""
        self._popped: list[Request] = []

    def add_request(self, request: Request) -> None:
        tracked = _tracked(request, self._ranker)
        if tracked.view.phase is not Phase.WAITING:  # a session between two turns
            tracked.view.phase = Phase.WAITING
            self._ranker.rerank(tracked)
        self._put(request, tracked)

    def prepend_request(self, request: Request) -> None:
        if self.planner is not None:
            self.planner.residents.evicted(request)
        tracked = _tracked(request, self._ranker)
        self._ranker.requeue(
            tracked, generated_tokens=request.num_output_tokens, preemptions=request.num_preemptions
        )
        self._put(request, tracked)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Request:
        return self.queue.first() if self.offered is None else self.offered[-1]

    def pop_request(self) -> Request:
        if self.offered is None:
            request = self.queue.pop_first()
        else:
            request = self.offered.pop()
            self.queue.remove(request.lengthwise.view.number)
        if self.planner is not None or self._ranker.observers:
            self._popped.append(request)
        return request

    def take_admitted(self) -> list[Request]:
        """Requests that were popped since the last call, and run; the others were put back."""
        if not self._popped:
            return []
        popped, self._popped = self._popped, []
        return [request for request in popped if request.status is _RUNNING]

    def remove_request(self, request: Request) -> None:
        tracked: Tracked | None = getattr(request, "lengthwise", None)
        if tracked is not None:
            self.queue.remove(tracked.view.number)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def expire_ranks(self) -> None:
        """Move the requests whose rank ended to where their next rank puts them."""
        for request in self.queue.pop_expired(self._ranker.load.now_s):
            tracked = _tracked(request, self._ranker)
            self._ranker.expire(tracked)
            self._put(request, tracked)

    def __bool__(self) -> bool:
        return len(self.queue) > 0 if self.offered is None else bool(self.offered)

    def __len__(self) -> int:
        return len(self.queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.queue)

    def __getitem__(self, index: int) -> Request:
        return list(self.queue)[index]

    def _put(self, request: Request, tracked: Tracked) -> None:
        self.queue.add(request, tracked.view.number, tracked.rank)


class HolderQueue(RankQueue):
    """vLLM's second waiting queue in rank order: of requests that hold KV blocks.

    Others that a version puts there go back to where they stood in `waiting`: the engine would
    serve them before all others, and unknown to the planner.
    """

    def __init__(self, ranker: Ranker, waiting: RankQueue) -> None:
        super().__init__(ranker)
        self._waiting = waiting

    def add_request(self, request: Request) -> None:
        if holds_blocks(request):
            super().add_request(request)
        else:
            self._waiting.add_request(request)


class RankMixin:
    """Puts a policy in charge of vLLM's scheduler, sync or async, and tells its observers."""

    lengthwise: Ranker = Ranker(FCFS())
    """Policy, load and counters of this engine; FCFS for one made without its constructor."""
    _lengthwise_planner: Planner[Request] | None = None
    _lengthwise_step_start_s = 0.0
    vllm_config: Any
    waiting: RankQueue
    _lengthwise_holders = RankQueue(lengthwise)
    """The engine's queue of requests that wait and hold KV blocks."""
    _lengthwise_receiver: ScoreReceiver | None = None

    def __init__(self, *args: Any, lengthwise_policy: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        engine: Any = self
        require_layout(engine)
        policy = configured_policy(engine.vllm_config.additional_config, lengthwise_policy)
        require_capabilities(policy, CAPABILITIES, ENGINE)
        thinks = bool(think_end_of(engine))
        self.lengthwise_start(policy, observers=observers_from_environment(engine, thinks=thinks))
        self._lengthwise_receiver = receiver_from_environment(
            engine.vllm_config.parallel_config.data_parallel_rank,
            lambda late: self.lengthwise.late_scores.inbox.append(late),
        )

    def lengthwise_start(self, policy: Policy, *, observers: Sequence[EngineObserver] = ()) -> None:
        """Put `policy` in charge of an engine that holds no request, before these observers."""
        ids = think_end_of(self)
        by_priority = self.vllm_config.scheduler_config.policy == "priority"
        self.lengthwise = Ranker(
            policy, observers=observers, by_priority=by_priority, think_end=ids
        )
        waiting = RankQueue(self.lengthwise)
        self._lengthwise_holders = HolderQueue(self.lengthwise, waiting)
        use_queues(self, waiting, self._lengthwise_holders)
        self._lengthwise_left: dict[str, Request] = {}
        """Requests that left the engine since the observers were last told."""
        self._lengthwise_planner = None
        self._lengthwise_stalled = False
        require_features(self.vllm_config, policy)
        if plans_steps(policy):
            require_think_end(
                policy,
                bool(ids),
                "start vLLM with --reasoning-parser, or put think_end (token ids) in our settings",
            )
            border = VllmBorder(self, ids if policy.traits.sees_thinking else ())
            self._lengthwise_last_thought = [ids[-1]] if policy.traits.sees_thinking else None
            self._lengthwise_planner = self.waiting.planner = Planner(
                self.lengthwise, border, self.waiting.queue
            )
            self._lengthwise_holders.planner = self._lengthwise_planner

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        ranker, planner = self.lengthwise, self._lengthwise_planner
        now_s = ranker.load.now_s = self._lengthwise_step_start_s = ranker.clock()
        if ranker.late_scores.inbox:
            ranker.take_late_scores(self.waiting.queue, self._lengthwise_holders.queue)
        for waiting in (self.waiting, self._lengthwise_holders):
            if now_s >= waiting.queue.first_end_s:
                waiting.expire_ranks()
        if planner is None:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
            if ranker.observers:
                self._lengthwise_admit()
            return output
        own = self._lengthwise_stalled or getattr(self, "pause_state", False)
        plan = None if own else planner.plan()
        if plan is None or not plan.num_tokens:
            planner.residents.left_out.clear()
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        else:
            limits = _limit(self, plan)
            try:
                output = super().schedule(*args, **kwargs)  # type: ignore[misc]
            finally:
                _unlimit(self, *limits)
        self._lengthwise_admit()
        # The engine knows reasons to run nobody that a plan does not (a grammar that compiles, a
        # block it counts otherwise): then the next step is its own.
        self._lengthwise_stalled = plan is not None and not output.total_num_scheduled_tokens
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        planner = self._lengthwise_planner
        if planner is not None and self._lengthwise_holders.queue:
            for request in self._lengthwise_holders:  # a session between two turns
                planner.residents.left(request.request_id)
        if planner is not None and scheduler_output.total_num_scheduled_tokens:
            self.lengthwise.end_step(self._lengthwise_step_start_s)
            # Without speculation, which is refused, a request has got one token or none.
            last = self._lengthwise_last_thought
            sampled = model_runner_output.sampled_token_ids
            planner.residents.step_ended(thinking_may_end=last is not None and last in sampled)
        if self.lengthwise.observers:
            self._lengthwise_tell(outputs)
        return outputs

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        if self._lengthwise_receiver is not None:
            self._lengthwise_receiver.close()
        for observer in self.lengthwise.observers:
            observer.close()

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if (planner := self._lengthwise_planner) is not None:
            planner.residents.left(request.request_id)
        if self.lengthwise.observers:
            self._lengthwise_left[request.request_id] = request
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _lengthwise_admit(self) -> None:
        """Follow the waiting requests that the step just scheduled has admitted."""
        ranker, planner = self.lengthwise, self._lengthwise_planner
        resumed = self._lengthwise_holders.take_admitted()
        for request in resumed:
            view = _tracked(request, ranker).view
            view.prompt_tokens = request.num_prompt_tokens
            if not request.num_output_tokens:  # a session's next turn
                over = ranker.is_thought_over(request.prompt_token_ids or ())
                request.lengthwise.thinking_over, view.thinking_tokens = over, 0
        for request in chain(self.waiting.take_admitted(), resumed):
            if planner is not None:
                planner.residents.admitted(request)
            ranker.tell_admitted(request.lengthwise, self._lengthwise_step_start_s)

    def _lengthwise_tell(self, outputs: Any) -> None:
        """Tell the observers the outcome of a step, and which requests have left since the last."""
        engine: Any = self
        observers, left = self.lengthwise.observers, self._lengthwise_left
        end, now_s = self.lengthwise.think_end, self.lengthwise.clock()
        for answer in chain.from_iterable(each.outputs for each in outputs.values()):
            name, new = answer.request_id, answer.new_token_ids
            request = left.get(name) or engine.requests[name]
            view = request.lengthwise.view
            for observer in observers if new else ():
                observer.emitted(view, len(new), now_s)
            if end and end[-1] in new and ends_thinking(request._output_token_ids, len(new), end):
                for observer in observers:
                    observer.thinking_ended(view, now_s)
            if left.pop(name, None) is not None:
                for observer in observers:
                    observer.finished(view, now_s)
        for observer in observers:
            for request in left.values():
                observer.withdrawn(request.lengthwise.view, now_s)
            observer.stepped(now_s)
        left.clear()


class VllmBorder(VllmMemory):
    """vLLM's scheduler as the planner sees it."""

    def __init__(self, scheduler: Any, think_end: tuple[int, ...]) -> None:
        super().__init__(scheduler)
        self._scheduler = scheduler
        self._seats = layout_of(scheduler).seats
        self._undecided = set[Request]()
        self.think_end = think_end
        self.whole_prompts = not scheduler.scheduler_config.enable_chunked_prefill
        self.max_tokens: int = scheduler.max_num_scheduled_tokens

    @property
    def max_num_seqs(self) -> int:
        # A session that waits for its next turn keeps its place in the model runner.
        idle = getattr(self._scheduler, "num_waiting_for_streaming_input", 0)
        return int(getattr(self._scheduler, self._seats)) - idle

    def max_chunk(self) -> int | None:
        scheduler = self._scheduler
        limit: int = scheduler.scheduler_config.long_prefill_token_threshold
        if not limit:
            return None
        queues = (scheduler.running, scheduler.waiting, scheduler._lengthwise_holders)
        num_requests = sum(map(len, queues))
        if num_requests <= 1:  # as the engine's schedule() has it
            return None
        if getattr(scheduler, "adaptive_long_prefill_threshold", False):
            share: int = scheduler.scheduler_config.max_num_batched_tokens // num_requests
            return max(limit, share)
        return limit

    def begin_step(self) -> None:
        super().begin_step()
        if self._has_connector:
            self._undecided = _undecided(self._scheduler)

    def loaded(self) -> Sequence[Request]:
        # A session between two turns, or what a KV connector has loaded. vLLM serves them before
        # all that wait, lest they starve each other of blocks.
        holders = self._scheduler._lengthwise_holders.queue
        if not holders:
            return ()
        done = self._scheduler.finished_recving_kv_req_ids
        return [one for one in holders if one.status in _READY or one.request_id in done]

    def is_blocked(self, item: Request, newcomers: Sequence[Request]) -> bool:
        if item in self._undecided or item.status is _BETWEEN_TURNS:
            return True
        if item.status is _COMPILING:
            return getattr(item.structured_output_request, "grammar", None) is None
        if getattr(item, "num_stale_output_tokens", 0) and not item.drop_stale_output:
            return True
        if item.lora_request is None:
            return False
        # vLLM counts the adapters of the requests in the step, and fails once those of a later step
        # are too many; those left out come back, so all residents count.
        others = (each.lora_request for each in chain(self._scheduler.running, newcomers))
        adapters = {lora.lora_int_id for lora in others if lora is not None}
        is_new = item.lora_request.lora_int_id not in adapters
        return is_new and len(adapters) >= self._scheduler.lora_config.max_loras

    def tracked(self, item: Request) -> Tracked:
        tracked: Tracked = item.lengthwise
        return tracked

    def output(self, item: Request) -> list[int]:
        output: list[int] = item._output_token_ids
        return output

    def ending_in(self, items: Iterable[Request], token: int) -> list[Request]:
        return [item for item in items if item._output_token_ids[-1:] == [token]]

    def evict(self, item: Request) -> bool:
        # The guards of the engine's own preemption: blocks that come free later help nobody now.
        scheduler = self._scheduler
        pending = getattr(scheduler.connector, "has_pending_block_frees", None)
        can_be_freed = getattr(scheduler, "_request_blocks_can_be_freed", None)
        if (pending and pending()) or (can_be_freed and not can_be_freed(item)):
            return False
        self.begin_step()  # what the prefix cache holds is held by one fewer
        preempt(scheduler, item)
        return True


def _limit(scheduler: Any, plan: Plan[Request]) -> tuple[int, int, bool]:
    """Make the engine's next step the planned one, by attributes that it reads in each step.

    Returns the engine's own limits, for `_unlimit`.
    """
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
    waiting.offered, holding.offered = plan.newcomers[::-1], []
    if holding.queue:
        holding.offered = [one for one in waiting.offered if _number(one) in holding.queue]
        waiting.offered = [one for one in waiting.offered if _number(one) in waiting.queue]
    if scheduler.connector is not None:
        undecided = _undecided(scheduler).difference(plan.newcomers)
        waiting.offered += sorted(undecided, key=_number, reverse=True)
    return own


def _unlimit(scheduler: Any, tokens: int, threshold: int, adapts: bool) -> None:
    scheduler.max_num_scheduled_tokens = tokens
    scheduler.scheduler_config.long_prefill_token_threshold = threshold
    scheduler.adaptive_long_prefill_threshold = adapts
    scheduler.waiting.offered = scheduler._lengthwise_holders.offered = None


def _undecided(scheduler: Any) -> set[Request]:
    """Return the waiting requests of which a KV connector has not said yet what it has of them.

    Nothing is planned for them. They are offered in each step, and run in the place of others once
    the connector has answered.
    """
    passed_over = getattr(scheduler, "deferred_waiting", ())
    queue = scheduler.waiting.queue
    return {one for one in passed_over if one.status in _READY and _number(one) in queue}


def _number(request: Request) -> int:
    number: int = request.lengthwise.view.number
    return number


class RankScheduler(RankMixin, Scheduler):  # type: ignore[misc]
    """vLLM's synchronous scheduler under a policy."""


class AsyncRankScheduler(RankMixin, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler under a policy. It sees each token one step late."""


def scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> RankScheduler | AsyncRankScheduler:
    """Make the scheduler that fits the engine; the settings name the policy."""
    asynchronous = vllm_config.scheduler_config.async_scheduling
    made = AsyncRankScheduler if asynchronous else RankScheduler
    return made(*args, vllm_config=vllm_config, **kwargs)


def _tracked(request: Request, ranker: Ranker) -> Tracked:
    """Return our state on the engine's request; made when the engine first queues it."""
    tracked: Tracked | None = getattr(request, "lengthwise", None)
    if tracked is None:
        tracked = request.lengthwise = ranker.track(
            request.request_id,
            # The front end stamps wall clock, the engine counts monotonic seconds.
            age_s=time.time() - request.arrival_time,
            prompt_tokens=request.num_prompt_tokens,
            carried=request.sampling_params and request.sampling_params.extra_args,
            priority=request.priority,
            prompt=request.prompt_token_ids or (),
        )
    return tracked


def think_end_of(scheduler: Any) -> tuple[int, ...]:
    """Return the token ids that end thinking: from our settings, else from vLLM's reasoning parser.

    Empty where neither says. Raises ConfigError for settings that are no token ids.
    """
    config = scheduler.vllm_config
    return configured_think_end(config.additional_config) or parsed_think_end(config)


probe_classes(RankQueue)
