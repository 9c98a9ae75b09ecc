"""Blocks as vLLM's own cache manager has them, counted by the planner: no engine is needed."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

SIZE, BLOCKS, WINDOW, CHUNK, MAX_LEN = 16, 64, 40, 48, 512


class Engine:
    """vLLM's cache manager with what it is given by a scheduler; it computes tokens by itself."""

    def __init__(self, *, windows: int = 0, caches: bool = True, states: str | None = None) -> None:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            MambaSpec,
            SlidingWindowSpec,
        )

        from scheduler_adapters.engines.vllm_v1.planner_view import VllmMemory

        shape: dict[str, Any] = {
            "block_size": SIZE, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32
        }  # fmt: skip
        specs: list[Any] = [FullAttentionSpec(**shape)]
        specs += [SlidingWindowSpec(**shape, sliding_window=WINDOW)] * windows
        if states is not None:
            state = {"shapes": ((4,),), "dtypes": (torch.float32,), "mamba_cache_mode": states}
            specs += [MambaSpec(block_size=SIZE if caches else MAX_LEN, **state)] * 2
        groups = [KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)]
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups),
            max_model_len=MAX_LEN,
            scheduler_block_size=max(spec.block_size for spec in specs),
            hash_block_size=SIZE,
            max_in_flight_tokens=CHUNK,
            enable_caching=caches,
            log_stats=True,
        )
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(SIZE, sha256)
        parts = {"kv_cache_manager": self.manager, "block_size": SIZE, "connector": None}
        config = SimpleNamespace(async_scheduling=False)

        class Memory(VllmMemory):
            output = evict = None  # type: ignore[assignment]

        self.memory = Memory(SimpleNamespace(**parts, scheduler_config=config))

    def request(self, name: str, tokens: int, *, shared: int = 0) -> Any:
        """A request whose first tokens are those of every other one."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        prompt = [5] * shared + random.Random(name).choices(range(9, 99), k=tokens - shared)
        params = SamplingParams(max_tokens=99, ignore_eos=True)
        return Request(name, prompt, params, None, block_hasher=self.hasher)

    def compute(self, request: Any, tokens: int) -> int:
        """Compute that many tokens; how many fewer blocks are free after that."""
        from vllm.v1.request import RequestStatus

        before, hits, blocks = self.memory.free_blocks(), 0, None
        if request.status is RequestStatus.WAITING:
            blocks, hits, _ = self.manager.get_computed_blocks(request)
        assert self.manager.allocate_slots(request, tokens, hits, blocks) is not None
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens += hits + tokens
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids(3)
        self.memory.begin_step()
        return before - self.memory.free_blocks()


def test_free_cached_blocks_count_as_needed():
    engine = Engine()
    first, second = engine.request("a", 100, shared=96), engine.request("b", 110, shared=96)
    assert engine.memory.need(second) == (110, 7)
    assert engine.compute(first, 100) == 7
    assert engine.memory.need(second) == (14, 1)
    assert engine.memory.need(second, 3) == (14, 2)
    engine.manager.free(first)
    engine.memory.begin_step()
    assert engine.memory.need(second) == (14, 7)
    assert engine.compute(second, 14) == 7


def test_the_end_of_a_hit_that_is_replayed_is_computed_again():
    engine = Engine()
    engine.compute(engine.request("a", 100, shared=96), 100)
    second = engine.request("b", 100, shared=96)
    for replay, need in ((32, (36, 1)), (96, (100, 7))):
        engine.memory._replay = replay
        engine.memory.begin_step()
        assert engine.memory.need(second) == need


def test_one_lookup_per_step_leaves_the_counts_of_hits(monkeypatch):
    engine = Engine()
    engine.compute(engine.request("a", 100, shared=96), 100)
    second, looked_up = engine.request("b", 100, shared=96), []
    lookup = engine.manager.coordinator.find_longest_cache_hit
    monkeypatch.setattr(
        engine.manager.coordinator,
        "find_longest_cache_hit",
        lambda *args: looked_up.append(args) or lookup(*args),
    )
    assert engine.memory.need(second) == engine.memory.need(second) == (4, 1)
    assert len(looked_up) == 1
    engine.memory.begin_step()
    engine.memory.need(second)
    assert len(looked_up) == 2
    assert engine.manager.make_prefix_cache_stats().requests == 0


def test_requests_that_read_no_cache_compute_all():
    engine = Engine()
    engine.compute(engine.request("a", 100, shared=96), 100)
    second = engine.request("b", 100, shared=96)
    second.skip_reading_prefix_cache = True
    assert engine.memory.need(second) == (100, 7)
    assert Engine(caches=False).memory.need(second) == (100, 7)


def test_only_blocks_that_nobody_else_holds_come_free():
    engine = Engine()
    first, second, third = (engine.request(name, 100, shared=96) for name in "abc")
    engine.compute(first, 100)
    engine.compute(second, 4)
    assert engine.memory.freed([first]) == engine.memory.freed([second]) == 1
    assert engine.memory.freed([first, second]) == 8
    # A waiting one that hits them takes them over.
    assert engine.memory.freed([first, second], hit_by=third) == 2
    before = engine.memory.free_blocks()
    engine.manager.free(first)
    engine.manager.free(second)
    assert engine.memory.free_blocks() - before == 8


@pytest.mark.parametrize("windows", [0, 1, 3])
@pytest.mark.parametrize("caches", [False, True])
def test_what_a_request_takes_in_each_step_is_known_before(windows, caches):
    """A prompt of several chunks and then decodes, in which blocks behind a window come free."""
    engine = Engine(windows=windows, caches=caches)
    memory, request = engine.memory, engine.request("a", 130)
    _, whole = memory.need(request)
    # 9 blocks of full attention; of a window those of its tokens and of a chunk, and one more.
    assert whole == 9 + windows * 7
    taken = engine.compute(request, CHUNK)
    while request.num_computed_tokens < 130:
        assert taken + memory.missing(request) == whole
        taken += engine.compute(request, min(CHUNK, 130 - request.num_computed_tokens))
        assert taken <= whole
    for _ in range(70):
        memory.release([request])
        expected = memory.growth([request])
        assert engine.compute(request, 1) == expected
    assert memory.freed([request]) == BLOCKS - 1 - memory.free_blocks()


@pytest.mark.parametrize("states", ["none", "align", "all"])
def test_the_growth_of_state_space_layers_is_known(states):
    engine = Engine(states=states, caches=states != "none")
    request = engine.request("a", 130)
    while request.num_computed_tokens < 130:
        engine.compute(request, min(CHUNK, 130 - request.num_computed_tokens))
    for _ in range(70):
        engine.memory.release([request])
        expected = engine.memory.growth([request])
        assert engine.compute(request, 1) == expected
    assert engine.memory.freed([request]) == BLOCKS - 1 - engine.memory.free_blocks()


def test_after_a_load_of_kv_the_rest_is_computed():
    engine = Engine()
    request = engine.request("a", 100)
    engine.compute(request, 64)
    assert engine.memory.need(request) == (36, 3)
    engine.compute(request, 35)
    request.num_computed_tokens = 100
    assert engine.memory.need(request) == (1, 0)


@pytest.mark.parametrize(
    ("pending", "can_be_freed", "hands_over", "evicts"),
    [
        (False, True, False, True),
        (False, True, True, True),
        (True, True, False, False),
        (False, False, False, False),
    ],
)
def test_a_resident_with_blocks_freed_later_is_not_evicted(
    pending, can_be_freed, hands_over, evicts
):
    from scheduler_adapters.engines.vllm_v1.planner_view import VllmView

    told: list[Any] = []
    view = object.__new__(VllmView)
    view.begin_step = lambda: None
    view._scheduler = SimpleNamespace(
        running=["resident"],
        connector=SimpleNamespace(has_pending_block_frees=lambda: pending),
        requires_kv_delivery=hands_over,
        _request_blocks_can_be_freed=lambda request: can_be_freed,
        _preempt_request=lambda request, now_s, **kwargs: told.append((request, kwargs)),
    )
    assert view.evict("resident") == evicts
    assert view._scheduler.running == ([] if evicts else ["resident"])
    how = {"drop_stale_output": True} if hands_over else {}
    assert told == ([("resident", how)] if evicts else [])
