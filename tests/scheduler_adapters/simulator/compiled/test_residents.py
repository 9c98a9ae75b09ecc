"""Ranks, queues and evictions of the compiled loop, run without numba."""

from heapq import heapify

import numba
import numpy as np
import pytest

from scheduler_adapters.simulator.compiled import residents
from scheduler_adapters.simulator.compiled.residents import LANE, LAST, LIMITS, REQUEST, STATE

RANKS = [(1.0, 0.0, 0), (0.0, 2.0, 1), (0.0, 2.0, 2), (0.0, 1.0, 3)]


@pytest.fixture
def records(monkeypatch):
    """Requests with `RANKS` as ranks; functions that call each other are plain ones."""
    for name in ("ceil_div", "enter_queue", "count_decode"):
        monkeypatch.setattr(residents, name, getattr(residents, name).py_func)
    records = np.zeros(len(RANKS), REQUEST).view(np.recarray)
    records.level, records.turn = [rank[0] for rank in RANKS], [rank[1] for rank in RANKS]
    records.starves_s, records.own_tick = np.inf, 3
    return records


@pytest.mark.parametrize(
    ("above", "below", "found"),
    [
        ((-1.0, 0.0, 0), LAST, RANKS[0]),
        ((-1.0, 0.0, 0), RANKS[0], RANKS[2]),
        ((0.0, 1.0, 9), RANKS[2], RANKS[1]),
        (RANKS[0], LAST, RANKS[0]),
    ],
)
def test_the_last_resident_is_between_two_ranks(records, above, below, found):
    prefilling = [RANKS[3], RANKS[0]]
    assert residents.last_resident.py_func(records, prefilling, [2, 1], above, below) == found


def test_prefills_stay_in_order():
    prefilling = []
    for rank in RANKS:
        residents.insert.py_func(prefilling, rank)
    assert prefilling == sorted(RANKS)


@pytest.mark.parametrize(("left", "blocks"), [(5, 3), (0, 2)])
def test_an_evicted_request_frees_its_blocks_and_waits(records, left, blocks):
    lanes, growing = np.zeros(3, LANE).view(np.recarray), np.zeros((3, 4), np.int64)
    state = np.zeros(1, STATE).view(np.recarray)[0]
    state.used, state.common, state.common_tick, state.now_s = 9, 4, 7, 1.5
    limits = np.zeros(1, LIMITS).view(np.recarray)[0]
    limits.block_tokens, limits.prefill_lane = 4, 1
    # As a prefill 9 tokens; as a decode 5 and the 4 common steps, less the last token.
    records[0].left, records[0].context = left, 9 if left else 5
    prefilling, decoding = ([RANKS[3], RANKS[0]], [2]) if left else ([RANKS[3]], [2, 0])
    waiting = [(-5.0, 0.0, 3)]
    heapify(waiting)
    residents.evict.py_func(
        records, lanes, growing, limits, waiting, prefilling, decoding, state, 0
    )
    assert (prefilling, decoding) == ([RANKS[3]], [2])
    assert (state.used, state.evictions) == (9 - blocks, 1)
    assert waiting == [(-5.0, 0.0, 3), (0.0, 0.0, 0)]
    evicted = records[0]
    assert evicted.waits
    assert (evicted.context, evicted.left, evicted.preemptions) == (9, 9, 1)
    assert evicted.own_tick == (3 if left else 7)


def test_a_request_that_has_starved_waits_in_front(records):
    records[1].starves_s, waiting = 1.0, [(-5.0, 0.0, 0)]
    residents.enter_queue(waiting, records[1], 1, 1.0)
    assert waiting[0][2] == 1


def test_machine_code_is_used_until_a_file_of_the_folder_changes(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def hits() -> int:
        compiled = residents.jit(residents.ceil_div.py_func)
        assert compiled(7, 2) == 4
        return sum(compiled.stats.cache_hits.values())

    assert [hits(), hits()] == [0, 1]
    monkeypatch.setattr(residents, "_SOURCE", "that of an edited file")
    assert hits() == 0
