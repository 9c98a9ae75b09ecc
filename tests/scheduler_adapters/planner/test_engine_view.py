"""Blocks of requests without shared blocks, counted from their tokens."""

from typing import Any

from scheduler_adapters.planner.engine_view import EngineView


class Blocks(EngineView[Any]):
    """Requests are (tokens, computed tokens)."""

    block_tokens = 16

    def context(self, item: Any) -> int:
        return int(item[0])

    def computed(self, item: Any) -> int:
        return int(item[1])

    def output(self, item: Any) -> list[int]:
        return []

    def free_blocks(self) -> int:
        return 0

    def evict(self, item: Any) -> bool:
        return False


def test_a_waiting_request_needs_a_block_per_sixteen_tokens():
    assert Blocks().need((32, 0)) == (32, 2)
    assert Blocks().need((32, 0), 1) == (32, 3)


def test_a_prefill_takes_the_rest_a_decode_one_at_a_full_block():
    blocks = Blocks()
    assert [blocks.missing(item) for item in ((40, 8), (40, 16), (40, 40))] == [2, 2, 0]
    assert blocks.growth([(33, 32), (34, 33), (49, 48)]) == 2


def test_all_that_a_resident_has_computed_comes_free():
    assert Blocks().freed([(40, 17), (40, 16)]) == 3
    assert not Blocks().loaded()
