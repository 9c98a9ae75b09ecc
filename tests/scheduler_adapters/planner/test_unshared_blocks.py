"""Blocks of requests that share none, counted from their tokens."""

from __future__ import annotations

from scheduler_adapters.planner.unshared_blocks import UnsharedBlocks


class Blocks(UnsharedBlocks[tuple[int, int]]):
    """Requests are (tokens, those that are computed)."""

    block_tokens = 16

    def context(self, item: tuple[int, int]) -> int:
        return item[0]

    def computed(self, item: tuple[int, int]) -> int:
        return item[1]


def test_a_waiting_request_needs_all_its_tokens_and_a_block_for_each_sixteen() -> None:
    assert Blocks().need((32, 0)) == (32, 2)
    assert Blocks().need((32, 0), 1) == (32, 3)


def test_a_prefill_takes_what_is_left_a_decode_one_where_its_block_is_full() -> None:
    blocks = Blocks()
    assert [blocks.missing(item) for item in ((40, 8), (40, 16), (40, 40))] == [2, 2, 0]
    assert blocks.growth([(33, 32), (34, 33), (49, 48)]) == 2


def test_all_that_a_resident_has_computed_comes_free() -> None:
    assert Blocks().freed([(40, 17), (40, 16)]) == 3
    assert not Blocks().loaded()
