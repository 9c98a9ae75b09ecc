"""Contiguous runs of KV blocks: the share of free blocks beside the longest run."""

import pytest

from scheduler_adapters.papers.phasor_measures import ContiguousRuns
from scheduler_adapters.views import InstanceView, RequestView


def test_what_is_beside_the_longest_free_run_is_unusable():
    def decode(number: int, generated: int = 0) -> RequestView:
        return RequestView(str(number), number, 0.0, 150, generated_tokens=generated)

    runs = ContiguousRuns(10)

    def unusable_with(*decodes: RequestView) -> float:
        view = InstanceView(
            instance_id=0,
            now_s=0.0,
            used_blocks=60,
            total_blocks=100,
            block_tokens=16,
            decodes=lambda: decodes,
        )
        runs.update(view)
        return runs.unusable(0)

    assert runs.unusable(0) == 0
    # Ten blocks each, for 160 tokens at the end: first fit by number; a second update is the same.
    for _ in range(2):
        assert unusable_with(*map(decode, (2, 0, 1, 3))) == 0
    # Ten of 80 are free between two requests, 60 behind them; then the next one fills the hole.
    assert unusable_with(decode(0), decode(2), decode(3)) == pytest.approx(1 / 7)
    assert unusable_with(decode(0), decode(2), decode(3), decode(4)) == 0
    # 170 tokens need eleven blocks: the first of all moves behind the last and leaves a hole.
    moved = unusable_with(decode(0, 20), decode(2), decode(3), decode(4))
    assert moved == pytest.approx(10 / 59)
    # A decode without a fitting run is left out.
    assert unusable_with(decode(0, 20), *map(decode, range(2, 11))) == pytest.approx(0)
