"""Replay of an engine's recorded admissions: how many took the request that the policy ranks first.

A recorder notes the events of the queue, in order; a policy that never saw the engine is asked for
the same requests at the same times, and must put those first that were admitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

from scheduler_adapters.policy import Policy, ask_rank
from scheduler_adapters.views import LoadView, Rank, RequestView


@dataclass(frozen=True, slots=True)
class Queued:
    """A request arrived, or lost its blocks, and waits."""

    view: RequestView
    load: LoadView


@dataclass(frozen=True, slots=True)
class Admitted:
    """A step began for these waiting requests, told by number, in this order."""

    numbers: tuple[int, ...]
    load: LoadView


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts of admissions, and of those that took the policy's first request."""

    num_admissions: int
    num_equal: int


def replay(policy: Policy, decisions: Iterable[Queued | Admitted]) -> Agreement:
    """Ask `policy` again and compare.

    Raises:
        InvalidDecision: the policy failed to rank.
        KeyError: a request was admitted that had not been queued.
    """
    waiting: dict[int, tuple[RequestView, Rank]] = {}
    num_admissions = num_equal = 0
    for decision in decisions:
        if isinstance(decision, Queued):
            view = copy(decision.view)
            waiting[view.number] = (view, ask_rank(policy, view, decision.load))
            continue
        for number, (view, rank) in waiting.items():
            waiting[number] = (view, _current(policy, view, rank, decision.load))
        for number in decision.numbers:
            first = min(waiting, key=lambda n: (waiting[n][1].lane, waiting[n][1].key, n))
            num_admissions += 1
            num_equal += first == number
            del waiting[number]
    return Agreement(num_admissions, num_equal)


def _current(policy: Policy, view: RequestView, rank: Rank, load: LoadView) -> Rank:
    """Return the rank that holds now: successors of one that has ended, known ones or asked for."""
    while rank.valid_until_s <= load.now_s:
        view.previous = rank
        rank = ask_rank(policy, view, load) if rank.then is None else rank.then
    return rank
