from math import nan

import pytest

from scheduler_adapters.placement import Watch
from scheduler_adapters.routers.replica_views import ReplicaViews, is_valid
from tests.scheduler_adapters.routers.test_legs import leg

REPORT = {"number": 1, "used_blocks": 4, "total_blocks": 10, "block_tokens": 16}
FLAWS = {"used_blocks": nan, "total_blocks": 0, "num_waiting": "3", "paced_for_s": nan}


def test_a_booking_ends_with_a_report_of_its_leg_or_its_call():
    views, found = ReplicaViews(Watch()), []
    views.update("r", {"a": REPORT}, 10.0)
    views.book("a", "call", leg(), 7, 10.0)
    views.book("a", "other", leg(), 8, 10.0)
    for number, arrived in enumerate((6, 7), 2):
        report = REPORT | {"number": number, "arrived": {"r": arrived}, "paced_for_s": 0.5}
        views.update("r", {"a": report}, 10.0 + number / 10)
        found += [view.num_waiting for view in views.fresh("ab", 10.0)]
    views.cancel("other")
    (view,) = views.fresh("a", 10.0)
    assert (found, view.num_waiting, view.paced_until_s) == ([2, 1], 0, 10.8)
    # The same report again is no newer one.
    views.update("r", {"a": report}, 13.0)
    assert not views.fresh("a", 12.0)


@pytest.mark.parametrize("name", FLAWS)
def test_a_report_with_a_flaw_counts_as_missing(name):
    assert is_valid(REPORT)
    assert not is_valid(REPORT | {name: FLAWS[name]})
