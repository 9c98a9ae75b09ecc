"""Differences between the supported versions of vLLM, 0.26 to 0.32.

A difference is read off the engine, not off its version number, so that untested versions in
between run as well. An engine that fits no row of `LAYOUTS` is refused.
"""

import inspect
import time
from dataclasses import dataclass
from typing import Any, Final

from lengthwise.errors import UnsupportedByEngine
from scheduler_adapters.engines.vllm_v1 import TESTED

try:
    from vllm import __version__
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.request_queue import RequestQueue
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request, RequestStatus
except ImportError as error:
    raise UnsupportedByEngine(
        f"vLLM's V1 scheduler cannot be imported ({error}); install vllm {TESTED}"
    ) from error

__all__ = [
    "AsyncScheduler", "Request", "RequestQueue", "RequestStatus", "Scheduler", "__version__",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of scheduler attributes that differ between versions."""

    seats: str
    """Most requests that run at once."""
    second_queue: str
    """Waiting requests served before `waiting`. `kv_holding_waiting` has requests with KV blocks,
    `skipped_waiting` also requests that could not start in an earlier step."""


LAYOUTS: Final = (
    Layout("max_num_running_reqs", "skipped_waiting"),  # 0.26 to 0.30
    Layout("max_num_active_reqs", "kv_holding_waiting"),  # 0.32
)
_ALL_HAVE: Final = (
    "vllm_config", "scheduler_config", "waiting", "running", "requests", "finished_req_ids",
    "max_num_scheduled_tokens", "current_step", "kv_cache_manager", "_preempt_request",
    "_free_request",
)  # fmt: skip
_THINK_END: Final = ("natural_reasoning_end_token_ids", "reasoning_end_token_ids")
"""Attributes of vLLM's reasoning configuration; 0.26 has only the second."""


def holds_blocks(request: Any) -> bool:
    """Return whether a waiting request holds KV blocks."""
    loads = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
    return loads or request.num_computed_tokens > 0


def layout_of(scheduler: Any) -> Layout:
    """Return the layout of a scheduler, stock or ours; UnsupportedByEngine where none fits."""
    for layout in LAYOUTS:
        wanted = (*_ALL_HAVE, layout.seats, layout.second_queue)
        if not (lacking := [name for name in wanted if not hasattr(scheduler, name)]):
            return layout
    raise _unknown_layout(f"its Scheduler has no {', '.join(lacking)}")


def require_layout(scheduler: Any) -> None:
    """Refuse a scheduler that lacks attributes of the adapter's, or sorts by another policy."""
    layout_of(scheduler)
    if (own := scheduler.scheduler_config.policy) not in ("fcfs", "priority"):
        raise UnsupportedByEngine(
            f"vLLM's own policy is {own!r} and sorts against ours; "
            "start it with --scheduling-policy fcfs, or priority"
        )


def preempt(scheduler: Any, request: Any) -> None:
    """Free the KV blocks of a running request and queue it again, before the next step."""
    scheduler.running.remove(request)
    hands_over = getattr(scheduler, "requires_kv_delivery", False)
    drop = {"drop_stale_output": True} if hands_over else {}
    scheduler._preempt_request(request, time.monotonic(), **drop)
    if hasattr(request, "async_tokens_to_discard"):
        # 0.26 may start it anew in that very step, which computes the token of a step in flight
        # once more. Newer versions first wait for it.
        request.async_tokens_to_discard += request.num_output_placeholders
        request.num_output_placeholders = 0


def parsed_think_end(config: Any) -> tuple[int, ...]:
    """Return the token ids that end thinking for the reasoning parser; empty without a parser."""
    reasoning = getattr(config, "reasoning_config", None)
    found = [getattr(reasoning, name, None) for name in _THINK_END]
    return tuple(next(filter(None, found), ()))


def tokenizer_of(config: Any) -> Any:
    """Return the tokenizer of the served model.

    Raises UnsupportedByEngine: it is not loaded, and prompts are token ids only.
    """
    if config.model_config.skip_tokenizer_init:
        raise UnsupportedByEngine(
            "a bundle in the engine reads prompts by the model's tokenizer, which "
            "--skip-tokenizer-init leaves out; leave that out, or the bundle"
        )
    from vllm.tokenizers import cached_tokenizer_from_config

    return cached_tokenizer_from_config(config.model_config)


def probe_classes(queue: type) -> None:
    """Refuse vLLM classes that differ from those of `TESTED`; `queue` is our `RequestQueue`."""
    if abstract := getattr(queue, "__abstractmethods__", ()):
        raise _unknown_layout(f"RequestQueue also has {sorted(abstract)}")
    queue_use = ("peek_request", "pop_request", "prepend_request", "add_request", "remove_requests")
    source = inspect.getsource(Scheduler)
    if lacking := [name for name in queue_use if name not in source]:
        raise _unknown_layout(
            f"its Scheduler never calls {', '.join(lacking)} of the waiting queue"
        )
    if not hasattr(Request, "num_output_tokens"):
        raise _unknown_layout("its Request has no num_output_tokens")


def _unknown_layout(found: str) -> UnsupportedByEngine:
    return UnsupportedByEngine(
        f"vLLM {__version__} is laid out in a way this adapter does not know: {found}; "
        f"use vllm {TESTED}, the versions tested"
    )
