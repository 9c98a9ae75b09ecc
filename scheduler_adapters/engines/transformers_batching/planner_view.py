"""transformers' continuous batching as the planner sees it, in the layouts that it has had.

Until 5.17 its KV cache counts free blocks of `block_size` tokens; since then it is cut into sectors
that allocators divide into pages. Everything else that is touched has stayed the same since 5.13.
"""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Final, NoReturn

from lengthwise.errors import UnsupportedByEngine
from scheduler_adapters.planner.ranking import Tracked
from scheduler_adapters.planner.unshared_blocks import UnsharedBlocks

try:
    from transformers import ContinuousBatchingConfig, __version__
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
    from transformers.generation.continuous_batching.scheduler import FIFOScheduler
except ImportError as error:
    raise UnsupportedByEngine(
        f"transformers' continuous batching cannot be imported ({error}); install transformers "
        "5.19, or another from 5.13 to 5.23"
    ) from error

PAGE_SETTING: Final = (
    "page_size"
    if "page_size" in {field.name for field in fields(ContinuousBatchingConfig)}
    else "block_size"
)
"""The name of the tokens of a KV block in `ContinuousBatchingConfig`."""
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
}  # fmt: skip


class TransformersBorder(UnsharedBlocks[RequestState]):
    """One scheduler of transformers, seen by the planner. Items are its `RequestState` objects."""

    whole_prompts = False

    def __init__(self, scheduler: Any, think_end: tuple[int, ...]) -> None:
        self._scheduler = scheduler
        self.think_end = think_end
        cache = self._cache = scheduler.cache
        self.max_num_seqs: int = scheduler.max_requests_per_batch
        self.max_tokens: int = cache.max_batch_tokens
        self.total_blocks: int = cache.num_blocks
        self.watermark_blocks = int(scheduler.safety_margin * self.total_blocks)
        self._in_sectors = hasattr(cache, "cache_allocators")
        num_groups = len(cache.cache_allocators) if self._in_sectors else cache.num_groups
        if num_groups != 1:
            raise UnsupportedByEngine(
                f"the model's KV cache has {num_groups} kinds of layers, and steps are planned "
                "for one; use a policy that only orders the queue"
            )
        self.block_tokens: int = (
            next(iter(cache.cache_allocators.values())).tokens_per_page
            if self._in_sectors
            else cache.block_size
        )

    def tracked(self, item: RequestState) -> Tracked:
        tracked: Tracked = item.lengthwise
        return tracked

    def output(self, item: RequestState) -> list[int]:
        return output_of(item)

    def computed(self, item: RequestState) -> int:
        return int(item.position_offset)

    def context(self, item: RequestState) -> int:
        return int(item.position_offset) + (len(item.remaining_prefill_tokens) or 1)

    def max_chunk(self) -> None:
        return None

    def is_blocked(self, item: RequestState, newcomers: Sequence[RequestState]) -> bool:
        return False

    def growth(self, items: Sequence[RequestState]) -> int:
        return sum([int(item.position_offset) % self.block_tokens == 0 for item in items])

    def ending_in(self, items: Iterable[RequestState], token: int) -> list[RequestState]:
        return [item for item in items if output_of(item)[-1] == token]

    def free_blocks(self) -> int:
        if not self._in_sectors:
            return int(self._cache.get_num_free_blocks())
        free = self._count_free()
        if 2 * free < self.total_blocks and self._cache.evict_cached_blocks():
            # Blocks that are kept for the prefix of a request to come count as taken, here only.
            free = self._count_free()
        return free

    def evict(self, item: RequestState) -> bool:
        # As the engine itself does it where it has no host memory to move the blocks to.
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
    """Refuse a version of transformers that differs from what the adapter was written against."""
    for name, wanted in _METHODS.items():
        method = getattr(FIFOScheduler, name, None)
        if method is None:
            _refuse(f"its FIFOScheduler has no {name}")
        if (taken := tuple(inspect.signature(method).parameters)[1:]) != wanted:
            _refuse(f"its FIFOScheduler.{name} takes {taken}, not {wanted}")
    if lacking := _STATE - {field.name for field in fields(RequestState)}:
        _refuse(f"its RequestState has no {', '.join(sorted(lacking))}")
    if not hasattr(RequestState, "create_equivalent_initial_request"):
        _refuse("its RequestState has no create_equivalent_initial_request")
    ways = ("get_num_free_blocks", "compute_free_capacity")
    if not any(hasattr(PagedAttentionCache, way) for way in ways):
        _refuse(f"its PagedAttentionCache has none of {', '.join(ways)}")


def _refuse(found: str) -> NoReturn:
    raise UnsupportedByEngine(
        f"transformers {__version__} is laid out in a way this adapter does not know: {found}; "
        "use 5.19, or another from 5.13 to 5.23"
    )
