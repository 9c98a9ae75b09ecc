"""The policy ranks only after a change; ranks that end are replaced."""

import numpy as np

from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.compiled.static_ranks import guarded_policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.late_burst import SEATS, late_burst
from tests.scheduler_adapters.simulator.any_policy import serve

SECONDS = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=50, watermark_fraction=0.0)


class Asked(Policy):
    """Answers with one rank, and notes time and request of each call."""

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
    serve(Engine(policy, Instance(latency=SECONDS.latency, kv_blocks=50, **limits)), requests)
    return policy.calls


def test_a_rank_is_asked_at_arrival_and_at_the_end_of_a_phase():
    calls = [(0.0, Phase.WAITING, 0), (1.0, Phase.REASONING, 1), (2.0, Phase.ANSWERING, 2)]
    assert asked(Rank()) == calls


def test_a_prefill_that_goes_on_is_asked_about_once():
    assert [phase for _, phase, _ in asked(Rank(), max_tokens=4)] == [*Phase]


def test_a_rank_for_some_tokens_is_asked_again_after_them():
    assert [tokens for _, _, tokens in asked(Rank(valid_tokens=2))] == [0, 1, 2, 4]


def test_a_sticky_rank_is_asked_once():
    assert len(asked(Rank(sticky=True))) == 1


def test_decodes_of_one_group_share_a_call():
    policy = Asked(Rank(valid_tokens=1, group="all"))
    serve(Engine(policy, SECONDS), make_requests(prompt_tokens=[10] * 5, output_tokens=[8] * 5))
    # Five at arrival, five after the prefill, then one for each of the six steps between tokens.
    assert len(policy.calls) == 5 + 5 + 6


FAST = Instance(latency=AffineLatency(base_s=0.01), kv_blocks=2000, max_num_seqs=SEATS)


def test_in_a_burst_with_late_scores_the_scored_start_by_rank():
    requests = late_burst()
    scheduled_s = simulate(requests, pars(), FAST).scheduled_s
    known_s = requests.score_delay_s
    pairs = 0
    for row in range(len(requests)):
        # Whoever was still waiting when this one started, and known by then, is not shorter.
        start_s = scheduled_s[row]
        behind = (scheduled_s > start_s) & (known_s <= start_s)
        if known_s[row] <= start_s:
            assert (requests.score[behind] >= requests.score[row]).all()
            pairs += behind.sum()
    assert pairs > 5000


def test_late_scores_are_worth_much_of_what_timely_ones_are():
    requests = late_burst()
    mean_s = [
        simulate(each, pars(), FAST).finished_s.mean()
        for each in (requests.with_scores(np.nan), requests, late_burst(over_s=0.0))
    ]
    never_s, late_s, known_s = mean_s
    assert known_s < late_s < never_s
    assert never_s - late_s > 0.4 * (never_s - known_s)  # a second of two and a half is without


def test_the_compiled_loop_leaves_late_scores_to_python():
    assert guarded_policy(late_burst(), pars(), FAST) is None
    assert guarded_policy(late_burst(over_s=0.0), pars(), FAST) is not None
