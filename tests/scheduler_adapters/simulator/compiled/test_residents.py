"""Ranks, queues and evictions of the compiled loop, run without numba."""

import numba
import numpy as np

from scheduler_adapters.simulator.compiled import residents
from scheduler_adapters.simulator.compiled.residents import REQUEST


def test_a_request_that_has_starved_waits_in_front():
    request = np.zeros(1, REQUEST).view(np.recarray)[0]
    request.starves_s, waiting = 1.0, [(-5.0, 0.0, 0)]
    residents.enter_queue.py_func(waiting, request, 1, 1.0)
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
