"""The compiled part of round-robin and PASCAL, and what is left to plain Python."""

import numpy as np
import pytest

from scheduler_adapters.policies.fair_shares import ClassPriority
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.simulator.compiled.quanta import enter_level, quanta_policy
from scheduler_adapters.simulator.compiled.residents import REQUEST
from scheduler_adapters.views import LoadView, Rank, RequestView
from scheduler_adapters.workload.requests import make_requests

REQUESTS = make_requests(prompt_tokens=[5, 20], output_tokens=[3] * 2, reasoning_tokens=[2, 0])


class Hurried(Pascal):
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return super().rank(request, load)._replace(lane=0)


def test_columns_are_the_phases_of_pascal():
    part = quanta_policy(REQUESTS, Pascal(demote_above_tokens=9))
    assert part is not None
    assert part.columns["thinking"].tolist() == [2, 0]
    assert part.columns["demoted_at"].tolist() == [5, 0]


def test_what_else_has_quanta_is_left_to_python():
    others = [ClassPriority(Pascal()), Hurried(), Sarathi()]
    for policy in [*others, Pascal(offload=True), RoundRobin(offload=True)]:
        assert quanta_policy(REQUESTS, policy) is None
    assert quanta_policy(REQUESTS, Pascal()) is not None


@pytest.mark.parametrize(
    ("generated", "lane", "until"),
    [(0, 0, 14), (4, 0, 17), (7, 1, 19), (9, 1, 23), (13, 1, 27), (19, 1, 30)],
)
def test_a_level_ends_with_its_quantum_or_its_phase(generated, lane, until):
    request = np.zeros(1, REQUEST).view(np.recarray)[0]
    request.prompt, request.end, request.phase = 10, 30, -2
    request.demoted_at, request.thinking = 7, 9
    # The plain function: arithmetic needs no compiler.
    assert enter_level.py_func(request, 4, generated, 1.0) == until
    assert (request.lane, request.turn) == (lane, 1.0)
