"""Random placement."""

from collections import Counter

from scheduler_adapters.placements.random_choice import RandomPlacement
from scheduler_adapters.views import RequestView
from tests.scheduler_adapters.placements.views import view

VIEWS = [view(i) for i in (4, 7, 2)]


def chosen(seed: int) -> list[int]:
    placement = RandomPlacement(seed=seed)
    return [placement.place(RequestView("a", 0, 0.0, 10), VIEWS) for _ in range(600)]


def test_equal_seeds_choose_equally_and_every_instance_is_as_likely():
    assert chosen(3) == chosen(3) != chosen(4)
    counts = Counter(chosen(3))
    assert set(counts) == {4, 7, 2}
    assert min(counts.values()) > 150
