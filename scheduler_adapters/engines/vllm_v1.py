"""vLLM V1 with our policies: `--scheduler-cls scheduler_adapters.engines.vllm_v1.pars`.

Every policy of `scheduler_adapters.policy.POLICIES` is here under its name, as a factory that picks
the synchronous or the asynchronous scheduler. The policy's settings travel to the engine process in
vLLM's `additional_config`, which may also name the policy, ours or an import path:

    python -m vllm.entrypoints.openai.api_server --model MODEL \\
        --scheduler-cls scheduler_adapters.engines.vllm_v1.pars \\
        --additional-config '{"lengthwise": {"starve_after_s": 60}}'

    LLM(MODEL, scheduler_cls="scheduler_adapters.engines.vllm_v1.scheduler",
        additional_config={"lengthwise": {"policy": "my_package.policies:ShortestPrompt"}})

Nothing of the engine's `schedule()` is copied. The waiting queue is replaced by one in rank order,
behind the engine's own queue interface; running requests keep the engine's order. Our state hangs
on the engine's `Request` and dies with it. Tested with vLLM 0.32.0; an unknown layout is refused.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from scheduler_adapters.engines.ranking import RankedQueue, Ranker, Tracked
from scheduler_adapters.engines.settings import make_policy, require_capabilities
from scheduler_adapters.policy import POLICIES
from scheduler_adapters.views import Capability, Phase
from scoring_service.errors import UnsupportedByEngine

try:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.request_queue import RequestQueue
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request
except ImportError as error:
    raise UnsupportedByEngine(
        f"vLLM's V1 scheduler cannot be imported ({error}); install vllm 0.32.0, the version tested"
    ) from error

ENGINE: Final = "vLLM"
CAPABILITIES: Final[frozenset[Capability]] = frozenset()
"""What this adapter does beyond ordering the waiting requests."""


class RankQueue(RequestQueue):  # type: ignore[misc]
    """vLLM's waiting queue in rank order.

    The engine prepends a preempted request, which is ranked anew, and requests that it could not
    start in this step (a grammar still compiling, ...), which go back to where they stood.
    """

    def __init__(self, ranker: Ranker) -> None:
        self._ranker = ranker
        self._queue: RankedQueue[Request] = RankedQueue()

    def add_request(self, request: Request) -> None:
        self._put(request, _tracked(request, self._ranker))

    def prepend_request(self, request: Request) -> None:
        tracked = _tracked(request, self._ranker)
        tracked.view.phase = Phase.WAITING
        tracked.view.generated_tokens = request.num_output_tokens
        tracked.view.preemptions = request.num_preemptions
        self._ranker.rerank(tracked)
        self._put(request, tracked)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Request:
        return self._queue.first()

    def pop_request(self) -> Request:
        return self._queue.pop_first()

    def remove_request(self, request: Request) -> None:
        tracked: Tracked | None = getattr(request, "lengthwise", None)
        if tracked is not None:
            self._queue.remove(tracked.view.number)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def expire_ranks(self, now_s: float) -> None:
        """Move the requests whose rank ended to where their next rank puts them."""
        for request in self._queue.pop_expired(now_s):
            tracked = _tracked(request, self._ranker)
            self._ranker.expire(tracked)
            self._put(request, tracked)

    def __bool__(self) -> bool:
        return len(self._queue) > 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def _put(self, request: Request, tracked: Tracked) -> None:
        self._queue.add(request, tracked.view.number, tracked.rank)


class RankMixin:
    """Puts a policy in charge of the waiting queue of vLLM's scheduler, sync or async."""

    lengthwise: Ranker
    """Policy, load and counters of this engine."""

    def __init__(self, *args: Any, lengthwise_policy: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        engine: Any = self
        _require_layout(engine)
        _require_fcfs(engine.scheduler_config.policy)
        policy = make_policy(engine.vllm_config.additional_config, lengthwise_policy)
        require_capabilities(policy, CAPABILITIES, ENGINE)
        self.lengthwise = Ranker(policy)
        self.waiting = RankQueue(self.lengthwise)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self.waiting.expire_ranks(self.lengthwise.clock())
        return super().schedule(*args, **kwargs)  # type: ignore[misc]


class RankScheduler(RankMixin, Scheduler):  # type: ignore[misc]
    """vLLM's synchronous scheduler under a policy."""


class AsyncRankScheduler(RankMixin, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler under a policy. It sees each token one step late."""


def scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> RankScheduler | AsyncRankScheduler:
    """Make the scheduler that fits the engine; the settings name the policy."""
    asynchronous = vllm_config.scheduler_config.async_scheduling
    made = AsyncRankScheduler if asynchronous else RankScheduler
    return made(*args, vllm_config=vllm_config, **kwargs)


def __getattr__(name: str) -> Callable[..., RankScheduler | AsyncRankScheduler]:
    """The factory of each policy by name, with "_" for "-": what `--scheduler-cls` looks up."""
    policy = name.replace("_", "-")
    if policy not in POLICIES:
        raise AttributeError(f"no policy {policy!r}; use one of {', '.join(sorted(POLICIES))}")

    def make(*args: Any, **kwargs: Any) -> RankScheduler | AsyncRankScheduler:
        return scheduler(*args, lengthwise_policy=policy, **kwargs)

    return make


def _tracked(request: Request, ranker: Ranker) -> Tracked:
    """Our state on the engine's request; made when the engine first queues it."""
    tracked: Tracked | None = getattr(request, "lengthwise", None)
    if tracked is None:
        tracked = request.lengthwise = ranker.track(
            request.request_id,
            # The front end stamps wall clock, the engine counts monotonic seconds.
            age_s=time.time() - request.arrival_time,
            prompt_tokens=request.num_prompt_tokens,
            carried=request.sampling_params and request.sampling_params.extra_args,
        )
    return tracked


def _require_fcfs(engine_policy: str) -> None:
    if engine_policy != "fcfs":
        raise UnsupportedByEngine(
            f"vLLM's own policy is {engine_policy!r} and sorts against ours; "
            "start it with --scheduling-policy fcfs"
        )


def _require_layout(engine: Any) -> None:
    """Refuse a scheduler object that lacks what the mixin touches."""
    needed = ("vllm_config", "scheduler_config", "waiting", "running", "requests")
    if lacking := [name for name in needed if not hasattr(engine, name)]:
        raise _unknown_layout(f"its Scheduler has no {', '.join(lacking)}")


def _probe_classes() -> None:
    """Refuse vLLM classes that differ from what this file was written against."""
    if RankQueue.__abstractmethods__:
        raise _unknown_layout(f"RequestQueue also has {sorted(RankQueue.__abstractmethods__)}")
    queue_use = ("peek_request", "pop_request", "prepend_request", "add_request", "remove_requests")
    source = inspect.getsource(Scheduler)
    if lacking := [name for name in queue_use if name not in source]:
        raise _unknown_layout(
            f"its Scheduler never calls {', '.join(lacking)} of the waiting queue"
        )
    taken = set(inspect.signature(Request.__init__).parameters)
    wanted = {"request_id", "prompt_token_ids", "sampling_params", "arrival_time"}
    if wanted - taken or not hasattr(Request, "num_output_tokens"):
        raise _unknown_layout(f"its Request takes {sorted(taken)}")


def _unknown_layout(found: str) -> UnsupportedByEngine:
    from vllm import __version__

    return UnsupportedByEngine(
        f"vLLM {__version__} is laid out in a way this adapter does not know: {found}; "
        "use vllm 0.32.0, the version tested"
    )


_probe_classes()
