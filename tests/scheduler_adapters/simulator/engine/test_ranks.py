"""The policy is asked when something changed and never otherwise; ranks that end are replaced."""

from __future__ import annotations

from math import inf

import pytest

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView
from scheduler_adapters.workload.requests import make_requests
from scoring_service.errors import InvalidDecision

SECONDS = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=50, watermark_fraction=0.0)


class Asked(Policy):
    """Answers with one rank, and notes when it was asked about what."""

    name = "asked"

    def __init__(self, answer: Rank) -> None:
        self.answer = answer
        self.calls: list[tuple[float, Phase, int]] = []

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        self.calls.append((load.now_s, request.phase, request.generated_tokens))
        return self.answer


def asked(answer: Rank, **limits) -> list[tuple[float, Phase, int]]:
    """The questions about one request of 10 + 6 tokens, two of them reasoning."""
    policy = Asked(answer)
    requests = make_requests(prompt_tokens=[10], output_tokens=[6], reasoning_tokens=[2])
    instance = Instance(latency=SECONDS.latency, kv_blocks=50, **limits)
    Engine(policy, instance).run(requests)
    return policy.calls


def test_a_rank_is_asked_at_arrival_after_the_prefill_and_at_the_end_of_thinking():
    calls = [(0.0, Phase.WAITING, 0), (1.0, Phase.REASONING, 1), (2.0, Phase.ANSWERING, 2)]
    assert asked(Rank()) == calls


def test_a_prefill_that_goes_on_is_asked_about_once():
    calls = asked(Rank(), max_tokens=4)
    assert [phase for _, phase, _ in calls] == [
        Phase.WAITING,
        Phase.PREFILL,
        Phase.REASONING,
        Phase.ANSWERING,
    ]


def test_a_rank_for_some_tokens_is_asked_again_when_they_are_generated():
    assert [tokens for _, _, tokens in asked(Rank(valid_tokens=2))] == [0, 1, 2, 4]


def test_a_sticky_rank_is_asked_once():
    assert len(asked(Rank(sticky=True))) == 1


def test_decodes_of_one_group_share_a_call():
    policy = Asked(Rank(valid_tokens=1, group="all"))
    requests = make_requests(prompt_tokens=[10] * 5, output_tokens=[8] * 5)
    Engine(policy, SECONDS).run(requests)
    # Five at arrival, five after the prefill, then one for each of the six steps between tokens.
    assert len(policy.calls) == 5 + 5 + 6


class Starves(Policy):
    """The second request is to go first from 2 s on, by a successor that was known before."""

    name = "starves"

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if request.phase is not Phase.WAITING or request.number < 2:
            return Rank((1.0,))
        return Rank((2.0,), valid_until_s=2.0, then=Rank())


@pytest.mark.parametrize(("late_s", "order"), [(1.5, [0, 2, 1]), (0.5, [0, 2, 1])])
def test_a_known_successor_takes_over_when_a_rank_ends(late_s, order):
    requests = make_requests(
        prompt_tokens=[8] * 3, output_tokens=[3] * 3, arrival_s=[0.0, 0.2, late_s]
    )
    one_seat = Instance(latency=SECONDS.latency, kv_blocks=50, max_num_seqs=1)
    scheduled_s = Engine(Starves(), one_seat).run(requests).scheduled_s
    assert scheduled_s.argsort().tolist() == order


class Ended(Policy):
    name = "ended"

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank(valid_until_s=load.now_s)


def test_a_policy_whose_ranks_have_always_ended_is_refused():
    requests = make_requests(prompt_tokens=[1], output_tokens=[1])
    with pytest.raises(InvalidDecision, match="'ended' keeps answering with ranks that have ended"):
        Engine(Ended(), SECONDS).run(requests)


def test_lanes_are_served_in_ascending_order_whenever_they_are_made():
    class ByLane(Policy):
        def rank(self, request: RequestView, load: LoadView) -> Rank:
            return Rank(lane=-request.number)

    requests = make_requests(prompt_tokens=[8] * 3, output_tokens=[2] * 3)
    one_seat = Instance(latency=SECONDS.latency, kv_blocks=50, max_num_seqs=1)
    engine = Engine(ByLane(), one_seat)
    assert engine.run(requests).scheduled_s.argsort().tolist() == [2, 1, 0]
    assert [lane.number for lane in engine.ranks.lanes] == [-2, -1, 0]
    assert engine.advance(inf) == inf
