"""User classes in order of priority, around the policy that orders each class."""

from collections.abc import Sequence

from scheduler_adapters.policy import Policy, PolicyWrapper
from scheduler_adapters.views import LoadView, Rank, RequestView


class ClassPriority(PolicyWrapper):
    """Policy with user classes in the order of `classes`; other classes are last.

    The order holds among requests of one lane: waiting requests of a better class precede the other
    waiting requests, and running requests keep running.
    """

    def __init__(self, policy: Policy, *, classes: Sequence[str] = ("paying", "free")) -> None:
        super().__init__(policy, suffix="+class")
        self.places = {name: place for place, name in enumerate(classes)}

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        place = self.places.get(request.user_class, len(self.places))
        return _after(place, self.policy.rank(request, load))


def _after(place: int, rank: Rank) -> Rank:
    group = None if rank.group is None else (place, rank.group)
    then = None if rank.then is None else _after(place, rank.then)
    return rank._replace(key=(place, *rank.key), then=then, group=group)
