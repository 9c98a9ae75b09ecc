"""vLLM's scheduler and KV memory as the planner reads them.

With prefix caching a block may belong to several requests, and a free block keeps its tokens until
it is taken anew. A hybrid model has a group of blocks per kind of layers; blocks behind a sliding
window are freed. Unless there is one group of full attention, vLLM's own coordinator counts. No
count here changes vLLM's statistics of cache hits.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

from scheduler_adapters.engines.vllm_v1.versions import (
    Request,
    RequestStatus,
    layout_of,
    preempt,
)
from scheduler_adapters.planner.engine_view import EngineView

READY: Final = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
_COMPILING: Final = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
_BETWEEN_TURNS: Final = RequestStatus.WAITING_FOR_STREAMING_REQ


class VllmMemory(EngineView[Request]):
    """The KV blocks of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        manager = self._manager = scheduler.kv_cache_manager
        self._coordinator = manager.coordinator
        self._pool = manager.block_pool
        self._groups = self._coordinator.single_type_managers
        self._slides = any(group.get_num_skipped_tokens(1 << 40) for group in self._groups)
        self._is_plain = len(self._groups) == 1 and not self._slides
        self._sizes = {group.block_size for group in self._groups}
        self._is_async = bool(scheduler.scheduler_config.async_scheduling)
        self._has_connector = scheduler.connector is not None
        self._no_blocks = manager.empty_kv_cache_blocks.blocks
        self._replay: int = getattr(scheduler, "prefix_replay_tokens", 0)
        """Tokens at the end of a cache hit that are computed anew; shorter hits do not count."""
        self._hits: dict[str, tuple[Any, int]] = {}
        """Request -> cached prefix (blocks per group, tokens); valid until a step or eviction."""
        self.block_tokens: int = scheduler.block_size
        self.max_growth = len(self._groups)
        self.total_blocks: int = self._pool.num_gpu_blocks - 1  # one is the null block
        self.watermark_blocks: int = manager.watermark_blocks

    def computed(self, item: Request) -> int:
        return int(item.num_computed_tokens)

    def context(self, item: Request) -> int:
        return int(item.num_tokens) + int(item.num_output_placeholders)

    def begin_step(self) -> None:
        self._hits.clear()

    def free_blocks(self) -> int:
        return int(self._pool.get_num_free_blocks())

    def need(self, item: Request, more: int = 0) -> tuple[int, int]:
        context = self.context(item)
        if item.num_computed_tokens:  # a connector has loaded that, and the last is computed anew
            return max(1, context - item.num_computed_tokens), self.missing(item)
        blocks, hit = self._hit(item)
        if not hit and self._is_plain:
            return context, -(-(context + more) // self.block_tokens)
        return context - hit + (self._replay if hit else 0), self._to_allocate(
            item.request_id, context + more, hit, blocks, whole=True
        )

    def most_needed(self, item: Request, more: int = 0) -> tuple[int, int]:
        # A look into the prefix cache takes longer than the rest of most plans. With a connector
        # vLLM would give tokens left over to requests that the connector has not reported yet.
        if self._is_plain and not self._has_connector and not item.num_computed_tokens:
            return super().need(item, more)
        return self.need(item, more)

    def missing(self, item: Request) -> int:
        if self._is_plain:
            return super().missing(item)
        held = sum(map(_held, self._coordinator.get_blocks(item.request_id)))
        return max(0, self._to_allocate("", self.context(item), whole=True) - held)

    def growth(self, items: Sequence[Request]) -> int:
        if self._is_async:
            items = [item for item in items if not _is_ending(item)]
        if self._is_plain:
            size = self.block_tokens
            return sum([item.num_computed_tokens % size == 0 for item in items])
        return sum(
            self._to_allocate(item.request_id, item.num_computed_tokens + 1)
            for item in items
            if any(item.num_computed_tokens % size == 0 for size in self._sizes)
        )

    def freed(self, items: Sequence[Request], hit_by: Request | None = None) -> int:
        holders = Counter(
            block.block_id
            for item in items
            for table in self._coordinator.get_blocks(item.request_id)
            for block in table[len(table) - _held(table) :]
        )
        if hit_by is not None:
            for block in (block for blocks in self._hit(hit_by)[0] for block in blocks):
                holders.pop(block.block_id, None)
        blocks = self._pool.blocks
        return sum(blocks[number].ref_cnt == count for number, count in holders.items())

    def release(self, items: Iterable[Request]) -> None:
        if self._slides:
            for item in items:
                # Blocks that a step in flight may still read stay, as in vLLM's own call.
                read = max(0, item.num_computed_tokens - item.num_in_flight_tokens)
                self._coordinator.remove_skipped_blocks(item.request_id, read)

    def cached_tokens(self, item: Request) -> int:
        """Return the tokens of an arriving request in the prefix cache, for a view of its own."""
        self._hits.clear()
        return max(0, self._hit(item)[1] - self._replay)

    def _hit(self, item: Request) -> tuple[Any, int]:
        """Return the cached prefix of a waiting request: (blocks per group, tokens)."""
        if not self._manager.enable_caching or item.skip_reading_prefix_cache:
            return self._no_blocks, 0
        if (hit := self._hits.get(item.request_id)) is None:
            # The last token is always computed: its output is the next one.
            most = item.num_tokens - 1
            blocks, tokens, _ = self._coordinator.find_longest_cache_hit(item.block_hashes, most)
            hit = (blocks, tokens) if tokens > self._replay else (self._no_blocks, 0)
            self._hits[item.request_id] = hit
        return hit

    def _to_allocate(
        self, name: str, tokens: int, hit: int = 0, blocks: Any = None, *, whole: bool = False
    ) -> int:
        """Return the further blocks that a request takes to hold `tokens`, `hit` of them cached.

        With `whole` all steps until then count, in which a window counts once.
        """
        return int(
            self._coordinator.get_num_blocks_to_allocate(
                request_id=name,
                num_tokens=tokens,
                new_computed_blocks=self._no_blocks if blocks is None else blocks,
                num_encoder_tokens=0,
                total_computed_tokens=hit,
                num_local_computed_tokens=hit,
                num_tokens_main_model=tokens,
                apply_admission_cap=whole,
            )
        )


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
            self._undecided = undecided(self._scheduler)

    def loaded(self) -> Sequence[Request]:
        # A session between two turns, or what a KV connector has loaded. vLLM serves them before
        # all waiting requests, lest they starve each other of blocks.
        if not (holders := self._scheduler._lengthwise_holders.queue):
            return ()
        done = self._scheduler.finished_recving_kv_req_ids
        return [one for one in holders if one.status in READY or one.request_id in done]

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


def undecided(scheduler: Any) -> set[Request]:
    """Return the waiting requests whose cached blocks a KV connector has not yet reported.

    They are in no plan. They are offered in each step, and run in place of others once the
    connector has answered.
    """
    skipped = getattr(scheduler, "deferred_waiting", ())
    queue = scheduler.waiting.queue
    return {one for one in skipped if one.status in READY and one.lengthwise.view.number in queue}


def _is_ending(item: Request) -> bool:
    """Return whether the step in flight yields the last token, as in vLLM's own schedule()."""
    placeholders: int = item.num_output_placeholders
    after = item.num_computed_tokens + 2 - placeholders
    return placeholders > 0 and bool(after >= item.num_prompt_tokens + item.max_tokens)


def _held(table: Sequence[Any]) -> int:
    """Return the blocks held in a table of one group; void ones, behind a window, stand first."""
    return len(table) - bisect_left(table, True, key=lambda block: not block.is_null)
