"""Ranks, queues and evictions of the compiled loop, run without numba."""

import numba
import numpy as np
import pytest

from scheduler_adapters.simulator.compiled import residents
from scheduler_adapters.simulator.compiled.residents import LAST, REQUEST

RANKS = [(1.0, 0.0, 0), (0.0, 2.0, 1), (0.0, 2.0, 2), (0.0, 1.0, 3)]


@pytest.fixture
def records(monkeypatch):
    """Requests with `RANKS` as ranks; functions that call each other are plain ones."""
    for name in ("ceil_div", "enter_queue"):
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
