"""The starvation guard: when a wait ends, and what it passes on."""

from math import inf

import pytest

from scheduler_adapters.policies.shortest_predicted import StarvationGuard, pars
from scheduler_adapters.policy import Policy
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView


def view(**changes) -> RequestView:
    fields = {"request_id": "r", "number": 0, "arrival_s": 10.0, "prompt_tokens": 5, "score": 3.0}
    return RequestView(**(fields | changes))


def test_the_guard_announces_the_moment_of_starving():
    rank = pars(starve_after_s=120).rank(view(), LoadView(now_s=20.0))
    assert (rank.key, rank.valid_until_s) == ((3.0,), 130.0)
    assert rank.then is not None
    assert rank.then.key == ()


def test_a_request_starves_when_announced_even_if_preempted():
    guard = pars(starve_after_s=120)
    assert guard.rank(view(preemptions=1), LoadView(now_s=200.0)).key == ()
    assert guard.rank(view(), LoadView(now_s=129.9)).key == (3.0,)
    assert guard.rank(view(), LoadView(now_s=130.0)) == Rank(())
    assert pars(starve_after_s=0).rank(view(), LoadView(now_s=10.0)).key == ()


class Ending(Policy):
    """A rank of level 2 that ends at a given time, and names its successor."""

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank((1.0,), 2, self.until_s, then=Rank((0.0,), 2), evict_key=(9.0,), sticky=True)


@pytest.mark.parametrize("until_s", [50.0, 130.0])
def test_a_rank_that_ends_before_the_wait_is_asked_for_again(until_s):
    rank = StarvationGuard(Ending(until_s), after_s=120).rank(view(), LoadView(now_s=20.0))
    assert (rank.valid_until_s, rank.then, rank.sticky) == (until_s, None, False)


def test_a_rank_that_outlasts_the_wait_ends_with_it_in_its_lane():
    rank = StarvationGuard(Ending(inf), after_s=120).rank(view(), LoadView(now_s=20.0))
    assert rank.valid_until_s == 130.0
    assert rank.then == Rank((), 2, evict_key=(9.0,))


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.REASONING, Phase.ANSWERING])
def test_a_resident_keeps_its_own_rank_however_long_it_waited(phase):
    rank = StarvationGuard(Ending(inf), after_s=1).rank(view(phase=phase), LoadView(now_s=1e6))
    assert rank == Ending(inf).rank(view(), LoadView())._replace(sticky=False)
