"""Join the shortest queue."""

from scheduler_adapters.placements.shortest_queue import ShortestQueue
from scheduler_adapters.views import RequestView
from tests.scheduler_adapters.placements.views import view

REQUEST = RequestView("a", 0, 0.0, 10)


def test_the_fewest_requests_are_chosen_then_the_lowest_id():
    queues = {3: (2, 2), 2: (1, 3), 1: (3, 0)}
    views = [view(n, num_waiting=w, num_answering=a) for n, (w, a) in queues.items()]
    assert ShortestQueue().place(REQUEST, views) == 1
    assert ShortestQueue().place(REQUEST, views[:2]) == 2
