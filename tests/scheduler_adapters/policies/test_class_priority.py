"""User classes one before the other."""

import pytest

from scheduler_adapters.policies.fair_shares import ClassPriority
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import Capability, LoadView, Rank, RequestView, StepRule


class Grouped(Policy):
    """Ranks that all requests share, with every field set."""

    name = "grouped"
    traits = Traits(requires=frozenset({Capability.EVICT}), sees_thinking=True)
    rule = StepRule(max_decodes=3)
    then = Rank((2.0,), lane=1)

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank((7.0,), 1, 5.0, 1, self.then, (3.0,), "shared", True)


def view(user_class: str) -> RequestView:
    return RequestView("r", 0, 0.0, 10, user_class=user_class)


@pytest.mark.parametrize(("user_class", "place"), [("gold", 0), ("tin", 1), ("", 2), ("lead", 2)])
def test_a_class_goes_before_the_key_and_the_rest_stays(user_class, place):
    rank = ClassPriority(Grouped(), classes=["gold", "tin"]).rank(view(user_class), LoadView())
    inner = Grouped().rank(view(user_class), LoadView())
    assert rank.key == (place, 7.0)
    assert rank.then == Grouped.then._replace(key=(place, 2.0))
    assert rank == inner._replace(key=rank.key, then=rank.then, group=rank.group)


def test_requests_of_two_classes_never_share_a_rank():
    policy = ClassPriority(Grouped())
    groups = {policy.rank(view(name), LoadView()).group for name in ("paying", "free", "other")}
    assert len(groups) == 3
    assert (
        policy.rank(view("free"), LoadView()).group == policy.rank(view("free"), LoadView()).group
    )
    # A rank of its own stays one.
    assert ClassPriority(Sarathi()).rank(view("free"), LoadView()).group is None
