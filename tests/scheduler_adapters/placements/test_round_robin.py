"""Round-robin placement."""

from scheduler_adapters.placements.round_robin import RoundRobinPlacement
from scheduler_adapters.views import RequestView
from tests.scheduler_adapters.placements.views import view

REQUEST = RequestView("a", 0, 0.0, 10)


def test_every_instance_gets_its_turn_by_its_own_id():
    views = [view(i) for i in (4, 7, 2)]
    placement = RoundRobinPlacement()
    assert [placement.place(REQUEST, views) for _ in range(5)] == [4, 7, 2, 4, 7]
    assert placement.place(REQUEST, views[:2]) == 7  # the sixth request, of two instances
