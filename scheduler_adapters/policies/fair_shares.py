"""Clients and user classes between each other: shares of the service, or priority of classes.

Shares follow a virtual counter per client of the service it received: the computed tokens of its
prompts, and twice its generated tokens. Clients whose counter is near the least are served in the
inner policy's order; one that is ahead of it by half the work in flight waits. A client whose first
request begins to wait is lifted to that distance below the least counter, so no client saves up
more. Classes share first, by weight, and then the clients of a class. So many clients of one class
gain nothing against another class.

Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024: virtual token counter,
with a charge for the expected output at admission. The distance is ours: without it the mean
latency of 32 equal clients was 8% longer.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any, Literal

from lengthwise.errors import require
from scheduler_adapters.policy import Policy, PolicyWrapper, load_policy
from scheduler_adapters.views import LoadView, Rank, RequestView, require_at_least

_OUTPUT = 2
"""Weight of a generated token; a computed prompt token has 1."""
_MANY_IDLE = 256


class FairShares(PolicyWrapper):
    """Policy in which clients have equal shares of their class, and classes shares by weight.

    The inner policy orders the waiting requests of each client. Between clients the engine keeps
    `ServiceShares`, per lane of the waiting requests; running requests keep running. With one
    client the order is that of the inner policy. The key of a wrapper around this one counts inside
    a client, too.

    Args:
        weights: class -> weight, a whole number; 1 for other classes.
    """

    def __init__(self, policy: Policy, *, weights: Mapping[str, int] | None = None) -> None:
        super().__init__(policy, suffix="+shares")
        require_at_least(1, **{f"weight of {name}": each for name, each in (weights or {}).items()})
        self.traits = replace(policy.traits, is_static=False, shares=dict(weights or {}))


def load_shared(
    name: str,
    clients: Collection[str] = (),
    *,
    shares: Mapping[str, int] | Literal["none"] | None = None,
    **settings: Any,
) -> Policy:
    """Make a policy by name: the loader of simulations and servers.

    Several `clients`, the senders of a workload, share the service.

    Args:
        shares: weights of user classes, for clients that a server does not know before; or "none".
        settings: those of the policy.

    Raises:
        ConfigError: as `load_policy` does, or `shares` are no weights.
    """
    policy = load_policy(name, **settings)
    if shares is None:
        shares = {} if len(clients) > 1 else "none"
    is_right = shares == "none" or isinstance(shares, Mapping)
    require("shares", repr(shares), is_right, 'weights of classes, such as {"paying": 3}')
    if shares == "none" or policy.traits.shares is not None:
        return policy
    return FairShares(policy, weights=shares)


def token_counter(
    *, inside: str = "fcfs", weights: Mapping[str, int] | None = None, **settings: Any
) -> FairShares:
    """Return the virtual token counter: equal shares around the policy `inside`, FCFS in the paper.

    `settings` are those of that policy. With pars or srpt the order in a client is a learned one.
    """
    shares = FairShares(load_policy(inside, **settings), weights=weights)
    shares.name = "virtual-token-counter" + ("" if inside == "fcfs" else f"+{inside}")
    return shares


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


@dataclass(slots=True, eq=False)
class Share:
    """Service received by a class, or by a client of a class."""

    group: "Share | None"
    """The class of a client; of a class, all classes."""
    scale: int = 1
    """Counted per token: inverse to the weight."""
    served: int = 0
    """The virtual counter."""
    waiting: int = 0
    """Waiting requests of a client; clients of a class with waiting requests."""
    finished: int = 0
    """Finished requests of a client, and their generated tokens; older ones count less."""
    generated: int = 0
    members: "dict[str, Share]" = field(default_factory=dict)
    newest: "Share | None" = None
    """The member that was admitted last."""

    def least(self) -> int:
        """Return the least counter of the members that wait; if none waits, of the newest."""
        waiting = (each.served for each in self.members.values() if each.waiting)
        return min(waiting, default=self.newest.served if self.newest else 0)


@dataclass(slots=True, eq=False)
class _Charge:
    """The service of one unfinished request, as counted so far."""

    share: Share
    view: RequestView
    tokens: int = 0
    runs: bool = False
    expected: int = 0
    """Generated tokens for which it is charged at least, while it runs."""
    cached: int = 0
    """Prompt tokens that were not computed."""
    generated: Callable[[], int] = int
    """Returns the generated tokens of a running request."""
    undo: Callable[[], object] = int
    """Takes back the charge of its newest admission."""


class ServiceShares:
    """The virtual counters of one engine, kept by the events of its requests.

    Counters are whole numbers, so equal events give equal counters in every engine.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = weights
        self._scale = lcm(1, *weights.values())
        self._all = Share(None)
        self._charges: dict[int, _Charge] = {}
        """Unfinished requests by receive number; so are the running ones."""
        self._running: dict[int, _Charge] = {}
        self._in_flight = 0
        """Charges of the running requests."""
        self._only: tuple[str, ...] | None = None
        """Class and name of the only client so far; () once there were two."""

    @classmethod
    def of(cls, policy: Policy) -> "ServiceShares | None":
        """Return the shares under a policy; None for a policy without shares."""
        return None if policy.traits.shares is None else cls(policy.traits.shares)

    @property
    def is_alone(self) -> bool:
        """True while no second client was seen: no counter decides."""
        return bool(self._only)

    @property
    def is_contended(self) -> bool:
        """True while requests of several clients wait."""
        return not self._only and sum([one.waiting for one in self._all.members.values()]) > 1

    def share_of(self, view: RequestView) -> Share:
        """Return the client's share of an unfinished request."""
        return self._charges[view.number].share

    def next_of(self, firsts: Mapping[Share, Any]) -> Share:
        """Return the client that is next; `firsts` are the clients' first requests, which sort."""
        if len(firsts) == 1:
            return next(iter(firsts))
        of: dict[Share, list[Share]] = {}
        for share in firsts:
            of.setdefault(_group(share), []).append(share)
        ready = [share for group in self._near(of) for share in self._near(of[group])]
        return min(ready, key=firsts.__getitem__)

    def _near(self, shares: Iterable[Share]) -> list[Share]:
        least = min([share.served for share in shares])
        return [share for share in shares if share.served - least < max(1, self._distance(share))]

    def _distance(self, share: Share) -> int:
        return self._in_flight // 2 * share.scale

    def waits(self, view: RequestView) -> None:
        """Count a request that has arrived, or that waits again without its blocks."""
        sender = view.user_class, view.client
        self._only = sender if self._only in (None, sender) else ()
        if not self._only:
            self.refresh()
        if (charge := self._charges.get(view.number)) is None:
            group = self._member(self._all, view.user_class)
            share = self._member(group, view.client)
            # Not at the end of a request: engines differ in the order of those that end together.
            if share.finished > 16:
                share.finished, share.generated = share.finished // 2, share.generated // 2
            charge = self._charges[view.number] = _Charge(share, view)
        elif self._running.pop(view.number, None) is not None:
            self._settle(charge, view.generated_tokens)
            self._run(charge, False)
        for one in () if self._only else (_group(charge.share), charge.share):
            if not one.waiting:
                one.served = max(one.served, _group(one).least() - self._distance(one))
        _count(charge.share, 1)

    def plan(self, view: RequestView) -> Callable[[], None]:
        """Charge a waiting request as its admission does; return the function that undoes it."""
        charge = self._charges[view.number]
        share, tokens = charge.share, charge.tokens
        self._all.newest, _group(share).newest = _group(share), share
        least, most = view.limits
        usual = share.generated // max(1, share.finished)
        expected = int(min(max(view.expected_tokens(usual), least), most))
        charge.expected = max(expected, view.generated_tokens)
        self._run(charge, True)
        self._settle(charge, charge.expected)
        _count(share, -1)

        def undo() -> None:
            _count(share, 1)
            self._add(charge, tokens - charge.tokens)
            self._run(charge, False)

        return undo

    def starts(self, view: RequestView, generated: Callable[[], int]) -> None:
        """Charge a request that leaves the queue; `generated` returns its generated tokens."""
        charge = self._running[view.number] = self._charges[view.number]
        charge.generated, charge.undo = generated, self.plan(view)

    def hit(self, view: RequestView, tokens: int) -> None:
        """Take back the charge for prompt tokens that an admission found in the prefix cache."""
        charge = self._charges[view.number]
        self._add(charge, charge.cached - tokens)
        charge.cached = tokens

    def returns(self, view: RequestView) -> None:
        """Put back a request that left the queue and could not start."""
        if (charge := self._running.pop(view.number, None)) is not None:
            charge.undo()

    def leaves(self, view: RequestView) -> None:
        """Charge a finished or cancelled request for its tokens; an unknown one is ignored."""
        if (charge := self._charges.pop(view.number, None)) is None:
            return
        if self._running.pop(view.number, None) is None:
            _count(charge.share, -1)
        else:
            self._settle(charge, charge.generated())
            self._run(charge, False)
            charge.share.finished += 1
            charge.share.generated += charge.generated()

    def refresh(self) -> None:
        """Charge running requests for the tokens beyond their expected ones."""
        for charge in self._running.values():
            if (generated := charge.generated()) > charge.expected:
                charge.expected = generated
                self._settle(charge, generated)

    def _member(self, group: Share, name: str) -> Share:
        if name not in group.members:
            count, least = len(group.members), group.least()
            if count >= _MANY_IDLE and not count & (count - 1):  # rarely: it walks all members
                shares = {each.share for each in self._charges.values()}
                used = shares.union(map(_group, shares))
                for idle, each in list(group.members.items()):
                    if each.served <= least and each not in used:
                        del group.members[idle]
            scale = self._scale // self._weights.get(name, 1) if group is self._all else 1
            # A new member has no credit, else a stream of new ones would be served before others.
            group.members[name] = Share(group, scale, served=least)
        return group.members[name]

    def _settle(self, charge: _Charge, generated: int) -> None:
        due = charge.view.prompt_tokens - charge.cached + _OUTPUT * generated
        self._add(charge, due - charge.tokens)

    def _run(self, charge: _Charge, runs: bool) -> None:
        charge.runs = runs
        self._in_flight += charge.tokens if runs else -charge.tokens

    def _add(self, charge: _Charge, tokens: int) -> None:
        charge.tokens += tokens
        self._in_flight += tokens * charge.runs
        charge.share.served += tokens
        _group(charge.share).served += tokens * _group(charge.share).scale


def _count(share: Share, change: int) -> None:
    """Count waiting requests of a client, and its class's clients with any."""
    before = share.waiting > 0
    share.waiting += change
    _group(share).waiting += (share.waiting > 0) - before


def _group(share: Share) -> Share:
    assert share.group is not None
    return share.group
