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

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from math import inf
from typing import Any, Final

from scheduler_adapters.engines.bundle_scoring import BundleScoring
from scheduler_adapters.engines.engine_metrics import observers_from_environment
from scheduler_adapters.engines.engine_sockets import EngineSocket
from scheduler_adapters.engines.score_channel import receiver_from_environment
from scheduler_adapters.engines.vllm_v1.additional_config import (
    configured_bundle,
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
    tokenizer_of,
)
from scheduler_adapters.planner.capabilities import (
    plans_steps,
    require_capabilities,
    require_think_end,
)
from scheduler_adapters.planner.planner import Planner
from scheduler_adapters.planner.ranking import RankedQueue, RankedRequest, Ranker
from scheduler_adapters.planner.step_budget import Plan
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import Policy
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import Capability, Phase

ENGINE: Final = "vLLM"
CAPABILITIES: Final = frozenset(
    {Capability.DEFER_RUNNING, Capability.EVICT, Capability.CHUNK_LIMIT, Capability.PREFIX_HITS}
)
"""Capabilities beyond ordering the queue. OFFLOAD would need a KV connector."""
_RUNNING: Final = RequestStatus.RUNNING
_READY: Final = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
_COMPILING: Final = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
_ABORTED: Final = RequestStatus.FINISHED_ABORTED
_MOST_HARMLESS: Final = 2048
"""Characters of a grammar's text, below the length of most answers."""
_FORCING: Final = re.compile(r"""["'](min\w+|pattern)["']""").search
_BETWEEN_TURNS: Final = RequestStatus.WAITING_FOR_STREAMING_REQ


class RankQueue(RequestQueue):  # type: ignore[misc]
    """vLLM's waiting queue in rank order.

    The engine prepends a preempted request, which is ranked anew. It also prepends requests that it
    could not start in this step (a grammar still compiling); these return to their former place.
    `waiting`: given for vLLM's second queue, which is served before all others, unknown to the
    planner. Requests without KV blocks return from it to their place in `waiting`.
    """

    def __init__(self, ranker: Ranker, waiting: "RankQueue | None" = None) -> None:
        self._ranker = ranker
        self._waiting = waiting
        self._shares = ranker.shares if waiting is None else None
        self.queue: RankedQueue[Request] = RankedQueue(self._shares)
        self.planner: Planner[Request] | None = None
        self.offered: list[Request] | None = None
        """While a planned step is scheduled: the only requests shown to the engine, in reverse."""
        self._popped: list[Request] = []
        self.memory: VllmMemory | None = None
        """For a policy that reads the prefix cache."""

    def add_request(self, request: Request) -> None:
        if self._waiting is not None and not holds_blocks(request):
            self._waiting.add_request(request)
            return
        tracked = _tracked(request, self._ranker, self.memory)
        if self._shares is not None:
            self._shares.returns(tracked.view)
        if tracked.view.phase is not Phase.WAITING:  # a session between two turns
            tracked.view.phase = Phase.WAITING
            self._ranker.rerank(tracked)
        self.queue.add(request)

    def prepend_request(self, request: Request) -> None:
        if self.planner is not None:
            self.planner.residents.left(request)
        self._ranker.requeue(
            _tracked(request, self._ranker),
            generated_tokens=request.num_output_tokens,
            preemptions=request.num_preemptions,
        )
        self.queue.add(request)

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
            self.queue.remove(_number(request))
        if self._shares is not None:
            self._shares.starts(request.lengthwise.view, request._output_token_ids.__len__)
        if self.planner is not None or self._ranker.observers or self._shares is not None:
            self._popped.append(request)
        return request

    def take_admitted(self) -> list[Request]:
        """Return the running requests among those popped since the last call."""
        popped, self._popped = self._popped, []
        return [request for request in popped if request.status is _RUNNING]

    def remove_request(self, request: Request) -> None:
        if hasattr(request, "lengthwise"):
            self.queue.remove(_number(request))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def __bool__(self) -> bool:
        return bool(self.queue.entries if self.offered is None else self.offered)

    def __len__(self) -> int:
        return len(self.queue.entries) + len(self.queue.held)

    def __iter__(self) -> Iterator[Request]:
        return chain(self.queue, self.queue.held.values())

    def __getitem__(self, index: int) -> Request:
        return list(self)[index]


class RankMixin:
    """vLLM's scheduler, sync or async, under a policy; reports events to observers."""

    lengthwise: Ranker = Ranker(FCFS())
    """Policy, load and counters of this engine; FCFS for one made without its constructor."""
    _lengthwise_planner: Planner[Request] | None = None
    _lengthwise_step_start_s = 0.0
    vllm_config: Any
    waiting: RankQueue
    _lengthwise_holders = RankQueue(lengthwise)
    """Waiting requests that hold KV blocks."""
    _lengthwise_receiver: EngineSocket | None = None
    _lengthwise_stalled = False
    _lengthwise_own: Sequence[EngineObserver] = ()
    _lengthwise_scoring: BundleScoring | None = None

    def __init__(self, *args: Any, lengthwise_policy: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        require_layout(self)
        policy = configured_policy(self.vllm_config.additional_config, lengthwise_policy)
        require_capabilities(policy, CAPABILITIES, ENGINE)
        if (settings := configured_bundle(self.vllm_config.additional_config)) is not None:
            self._lengthwise_scoring = BundleScoring(settings, tokenizer_of(self.vllm_config))
        self._lengthwise_own = observers_from_environment(self, thinks=bool(think_end_of(self)))
        self.lengthwise_start(policy, observers=self._lengthwise_own)
        self._lengthwise_receiver = receiver_from_environment(
            self.vllm_config.parallel_config.data_parallel_rank,
            lambda late: self.lengthwise.late_scores.inbox.append(late),
        )

    def lengthwise_start(self, policy: Policy, *, observers: Sequence[EngineObserver] = ()) -> None:
        """Start to schedule by `policy`, in an engine without requests, reporting to observers."""
        end = think_end_of(self)
        by_priority = self.vllm_config.scheduler_config.policy == "priority"
        ranker = Ranker(
            policy,
            observers=observers,
            by_priority=by_priority,
            think_end=end,
            scoring=self._lengthwise_scoring,
        )
        self.lengthwise, waiting = ranker, RankQueue(ranker)
        holders = self._lengthwise_holders = RankQueue(ranker, waiting)
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
            planner = Planner(ranker, VllmView(self), waiting.queue)
            self._lengthwise_planner = waiting.planner = holders.planner = planner

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        ranker, planner = self.lengthwise, self._lengthwise_planner
        running: Sequence[Request] = self.running  # type: ignore[attr-defined]
        self._lengthwise_step_start_s = ranker.begin_step(
            self.waiting.queue,
            self._lengthwise_holders.queue,
            num_free=getattr(self, self._lengthwise_seats) - len(running),
            num_tokens=self.max_num_scheduled_tokens - len(running),  # type: ignore[attr-defined]
            is_idle=not running,
        )
        if planner is None and not ranker.observers and ranker.shares is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
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
                self.lengthwise.end_step(self._lengthwise_step_start_s)
                # Without speculation, which is refused, each request has at most one token.
                last, sampled = planner.residents.think_end[-1:], model_runner_output
                may_end = bool(last) and list(last) in sampled.sampled_token_ids
                planner.residents.step_ended(thinking_may_end=may_end)
        if self.lengthwise.observers:
            self._lengthwise_report(outputs)
        return outputs

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        if self._lengthwise_receiver is not None:
            self._lengthwise_receiver.close()
        if self._lengthwise_scoring is not None:
            self._lengthwise_scoring.close()
        for observer in dict.fromkeys([*self._lengthwise_own, *self.lengthwise.observers]):
            observer.close()

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if (planner := self._lengthwise_planner) is not None:
            planner.residents.left(request)
        if request.status is not _ABORTED and hasattr(request, "lengthwise"):
            self.lengthwise.finished(request.lengthwise, request.num_output_tokens)
        if self.lengthwise.shares is not None and hasattr(request, "lengthwise"):
            self.lengthwise.shares.leaves(request.lengthwise.view)
        if self.lengthwise.observers:
            self._lengthwise_left[request.request_id] = request
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _lengthwise_admit(self, output: Any) -> None:
        resumed = self._lengthwise_holders.take_admitted()
        for request in resumed:
            tracked = request.lengthwise
            tracked.view.prompt_tokens = request.num_prompt_tokens
            if not request.num_output_tokens:  # a session's next turn
                prompt = request.prompt_token_ids or ()
                tracked.thinking_over = self.lengthwise.ends_prompt_thinking(prompt)
                tracked.view.thinking_tokens = 0
        for request in self.waiting.take_admitted() + resumed:
            if self._lengthwise_planner is not None:
                self._lengthwise_planner.residents.admitted(request)
            if self.lengthwise.shares is not None and not request.num_preemptions:
                scheduled = output.num_scheduled_tokens.get(request.request_id, 0)
                cached = request.num_computed_tokens - scheduled
                self.lengthwise.shares.hit(request.lengthwise.view, cached)
            self.lengthwise.admitted(request.lengthwise, self._lengthwise_step_start_s)

    def _lengthwise_report(self, outputs: Any) -> None:
        """Report to the observers the tokens of a step, and the requests that have left since."""
        engine: Any = self
        ranker, left = self.lengthwise, self._lengthwise_left
        now_s = ranker.clock()
        answers = [one for each in outputs.values() for one in each.outputs if one.new_token_ids]
        if answers:
            requests = engine.requests
            fresh = [left.get(one.request_id) or requests[one.request_id] for one in answers]
            ranker.emitted(
                [request.lengthwise.view for request in fresh],
                [request._output_token_ids for request in fresh],
                [len(one.new_token_ids) for one in answers],
                now_s,
            )
        if left:
            ended = {one.request_id for each in outputs.values() for one in each.outputs}
            for (name, request), observer in product(left.items(), ranker.observers):
                tell = observer.finished if name in ended else observer.withdrawn
                tell(request.lengthwise.view, now_s)
            left.clear()
        for observer in ranker.at["stepped"]:
            observer.stepped(now_s)


class VllmView(VllmMemory):
    """vLLM's scheduler as the planner reads it."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._scheduler = scheduler
        self._seats = layout_of(scheduler).seats
        self._undecided = set[Request]()
        self.whole_prompts = not scheduler.scheduler_config.enable_chunked_prefill
        self.max_tokens: int = scheduler.max_num_scheduled_tokens

    @property
    def max_num_seqs(self) -> int:  # type: ignore[override]
        # A session between two turns keeps its place in the model runner.
        idle = getattr(self._scheduler, "num_waiting_for_streaming_input", 0)
        return int(getattr(self._scheduler, self._seats)) - idle

    def max_chunk(self) -> int | None:
        scheduler, config = self._scheduler, self._scheduler.scheduler_config
        limit: int = config.long_prefill_token_threshold
        if not limit:
            return None
        queues = (scheduler.running, scheduler.waiting, scheduler._lengthwise_holders)
        num_requests = sum(map(len, queues))
        if num_requests <= 1:  # as in the engine's schedule()
            return None
        if getattr(scheduler, "adaptive_long_prefill_threshold", False):
            return max(limit, int(config.max_num_batched_tokens) // num_requests)
        return limit

    def begin_step(self) -> None:
        super().begin_step()
        if self._has_connector:
            self._undecided = _undecided(self._scheduler)

    def loaded(self) -> Sequence[Request]:
        # A session between two turns, or what a KV connector has loaded. vLLM serves them before
        # all waiting requests, lest they starve each other of blocks.
        if not (holders := self._scheduler._lengthwise_holders.queue):
            return ()
        done = self._scheduler.finished_recving_kv_req_ids
        return [one for one in holders if one.status in _READY or one.request_id in done]

    def is_blocked(self, item: Request, admissions: Sequence[Request]) -> bool:
        if item in self._undecided or item.status is _BETWEEN_TURNS:
            return True
        if item.status is _COMPILING:
            return getattr(item.structured_output_request, "grammar", None) is None
        if getattr(item, "num_stale_output_tokens", 0) and not item.drop_stale_output:
            return True
        if item.lora_request is None:
            return False
        # vLLM counts the adapters of the requests in the step, and fails once those of a later step
        # are too many. A resident left out runs again, so all residents count.
        others = (each.lora_request for each in chain(self._scheduler.running, admissions))
        adapters = {lora.lora_int_id for lora in others if lora is not None}
        is_new = item.lora_request.lora_int_id not in adapters
        return is_new and len(adapters) >= self._scheduler.lora_config.max_loras

    def output(self, item: Request) -> list[int]:
        return item._output_token_ids  # type: ignore[no-any-return]

    def evict(self, item: Request) -> bool:
        # The guards of the engine's own preemption: blocks freed later are no help now.
        scheduler = self._scheduler
        pending = getattr(scheduler.connector, "has_pending_block_frees", None)
        can_be_freed = getattr(scheduler, "_request_blocks_can_be_freed", None)
        if (pending and pending()) or (can_be_freed and not can_be_freed(item)):
            return False
        self.begin_step()  # what the prefix cache holds is held by one fewer
        preempt(scheduler, item)
        return True


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
        holding.offered = [one for one in waiting.offered if _number(one) in holding.queue]
        waiting.offered = [one for one in waiting.offered if _number(one) in waiting.queue]
    if scheduler.connector is not None:
        undecided = _undecided(scheduler).difference(plan.admitted)
        waiting.offered += sorted(undecided, key=_number, reverse=True)
    return own


def _unlimit(scheduler: Any, tokens: int, threshold: int, adapts: bool) -> None:
    scheduler.max_num_scheduled_tokens = tokens
    scheduler.scheduler_config.long_prefill_token_threshold = threshold
    scheduler.adaptive_long_prefill_threshold = adapts
    scheduler.waiting.offered = scheduler._lengthwise_holders.offered = None


def _undecided(scheduler: Any) -> set[Request]:
    """Return the waiting requests whose cached blocks a KV connector has not yet reported.

    They are in no plan. They are offered in each step, and run in place of others once the
    connector has answered.
    """
    skipped = getattr(scheduler, "deferred_waiting", ())
    queue = scheduler.waiting.queue
    return {one for one in skipped if one.status in _READY and _number(one) in queue}


def _number(request: Request) -> int:
    return request.lengthwise.view.number  # type: ignore[no-any-return]


class RankScheduler(RankMixin, Scheduler):  # type: ignore[misc]
    """vLLM's synchronous scheduler under a policy."""


class AsyncRankScheduler(RankMixin, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler under a policy. It sees each token one step late."""


def scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> RankScheduler | AsyncRankScheduler:
    """Make the synchronous or the asynchronous scheduler, as vLLM is configured."""
    made = AsyncRankScheduler if vllm_config.scheduler_config.async_scheduling else RankScheduler
    return made(*args, vllm_config=vllm_config, **kwargs)


def _tracked(request: Request, ranker: Ranker, memory: VllmMemory | None = None) -> RankedRequest:
    if not hasattr(request, "lengthwise"):
        request.lengthwise = ranker.track(
            request.request_id,
            # The front end stamps wall clock, the engine counts monotonic seconds.
            age_s=time.time() - request.arrival_time,
            prompt_tokens=request.num_prompt_tokens,
            carried=request.sampling_params and request.sampling_params.extra_args,
            priority=request.priority,
            prompt=_text_ids(request),
            limits=limits_of(request.sampling_params),
            cached_tokens=0 if memory is None else memory.cached_tokens(request),
        )
    return request.lengthwise  # type: ignore[no-any-return]


def _text_ids(request: Request) -> Sequence[int]:
    """Return the token ids of a prompt without those in the place of images and embeddings."""
    ids, features = request.prompt_token_ids or (), getattr(request, "mm_features", None)
    is_text = getattr(request, "prompt_is_token_ids", None)
    if not features and is_text is None:
        return ids
    places = [feature.mm_position for feature in features or ()]
    left_out = {n for each in places for n in range(each.offset, each.offset + each.length)}
    left_out |= {n for n, is_id in enumerate(is_text or ()) if not is_id}
    return [token for number, token in enumerate(ids) if number not in left_out]


def limits_of(params: Any) -> tuple[float, float]:
    """Return the least and the most output tokens of a request with these sampling parameters.

    The most are the least as well where the request may force an answer to go on: by `ignore_eos`,
    biased or allowed tokens, or a grammar. A choice, or a JSON schema without minimum and pattern,
    can force no more than its own text.
    """
    if params is None:
        return 0, inf
    most = inf if params.max_tokens is None else params.max_tokens
    is_forced, grammar = params.ignore_eos, params.structured_outputs
    if grammar is not None:
        names = ("regex", "grammar", "structural_tag", "whitespace_pattern")
        is_forced = is_forced or any(getattr(grammar, name) is not None for name in names)
        text = str(grammar.json or grammar.choice)
        is_forced = is_forced or len(text) > _MOST_HARMLESS or bool(_FORCING(text))
    is_forced = is_forced or bool(params.logit_bias or params.allowed_token_ids)
    return most if is_forced else params.min_tokens, most


def think_end_of(scheduler: Any) -> tuple[int, ...]:
    """Return the token ids that end thinking, from our settings or vLLM's reasoning parser.

    Empty if neither has them. Raises ConfigError for settings that are no token ids.
    """
    config = scheduler.vllm_config
    return configured_think_end(config.additional_config) or parsed_think_end(config)


probe_classes(RankQueue)
