"""transformers' continuous batching as the planner reads it, in its two layouts since 5.13.

Until 5.17 its KV cache counts free blocks of `block_size` tokens. Since then the cache has sectors,
which allocators divide into pages.
"""

import inspect
from dataclasses import fields
from typing import Any, Final

from lengthwise.errors import UnsupportedByEngine
from scheduler_adapters.planner.engine_view import EngineView

try:
    from transformers import __version__
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
    from transformers.generation.continuous_batching.scheduler import FIFOScheduler
except ImportError as error:
    raise UnsupportedByEngine(
        f"transformers' continuous batching cannot be imported ({error}); install transformers "
        "5.19, or another from 5.13 to 5.23"
    ) from error

_METHODS: Final = {
    "__init__": ("cache", "safety_margin", "max_requests_per_batch"),
    "reset": (),
    "add_waiting_request": ("state",),
    "schedule_batch": ("token_budget", "cache_budget"),
    "finish_request": ("request_id",),
    "clear_cancelled_requests": (),
}
_STATE: Final = {
    "request_id", "initial_tokens", "generated_tokens", "remaining_prefill_tokens",
    "position_offset", "created_time", "num_children", "is_cpu_offloaded", "_true_initial_tokens",
    "create_equivalent_initial_request",
}  # fmt: skip
_FREE_BLOCKS: Final = ("get_num_free_blocks", "compute_free_capacity")


class TransformersView(EngineView[RequestState]):
    """A scheduler of transformers as the planner reads it. Items are its `RequestState` objects."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        cache = self._cache = scheduler.cache
        self.max_num_seqs = scheduler.max_requests_per_batch
        self.max_tokens = cache.max_batch_tokens
        self.total_blocks = cache.num_blocks
        self.watermark_blocks = int(scheduler.safety_margin * self.total_blocks)
        self._allocators = list(getattr(cache, "cache_allocators", {}).values())
        num_groups = len(self._allocators) or cache.num_groups
        if num_groups != 1:
            raise UnsupportedByEngine(
                f"the model's KV cache has {num_groups} kinds of layers, and steps are planned "
                "for one; use a policy that only orders the queue"
            )
        self.block_tokens = (
            self._allocators[0].tokens_per_page if self._allocators else cache.block_size
        )

    def output(self, item: RequestState) -> list[int]:
        return output_of(item)

    def computed(self, item: RequestState) -> int:
        return int(item.position_offset)

    def context(self, item: RequestState) -> int:
        return int(item.position_offset) + (len(item.remaining_prefill_tokens) or 1)

    def free_blocks(self) -> int:
        if not self._allocators:
            return int(self._cache.get_num_free_blocks())
        free = self._count_free()
        if 2 * free < self.total_blocks and self._cache.evict_cached_blocks():
            # Blocks kept for the prefix of a later request count as taken, but only here.
            free = self._count_free()
        return free

    def evict(self, item: RequestState) -> bool:
        # As the engine itself does without host memory for the blocks.
        returning = item.create_equivalent_initial_request()
        item._status = RequestStatus.FINISHED
        self._scheduler.finish_request(item.request_id)
        self._scheduler.add_waiting_request(returning)
        return True

    def _count_free(self) -> int:
        return round(float(self._cache.compute_free_capacity()) * self.total_blocks)


def output_of(state: RequestState) -> list[int]:
    """Return the token ids generated so far; after an eviction they are inside the prompt."""
    before = state._true_initial_tokens
    tokens: list[int] = state.generated_tokens
    return state.initial_tokens[before:] + tokens if before else tokens


def require_known_layout() -> None:
    """Refuse a version of transformers with a layout unknown to the adapter."""
    for name, wanted in _METHODS.items():
        method = getattr(FIFOScheduler, name, lambda: None)
        taken = tuple(inspect.signature(method).parameters)[1:]
        _require(taken == wanted, f"FIFOScheduler.{name} takes {taken}, not {wanted}")
    lacking = _STATE - {field.name for field in fields(RequestState)}
    lacking -= {name for name in lacking if hasattr(RequestState, name)}
    _require(not lacking, f"RequestState has no {', '.join(sorted(lacking))}")
    counts = any(hasattr(PagedAttentionCache, way) for way in _FREE_BLOCKS)
    _require(counts, f"PagedAttentionCache has none of {', '.join(_FREE_BLOCKS)}")


def _require(holds: bool, found: str) -> None:
    if not holds:
        raise UnsupportedByEngine(
            f"transformers {__version__} is laid out in a way this adapter does not know: its "
            f"{found}; use 5.19, or another from 5.13 to 5.23"
        )
