"""PASCAL where seats or blocks are short; a cap on the decodes of a step."""

from dataclasses import replace

import numpy as np

from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import LoadView, Phase, RequestView
from scheduler_adapters.workload.requests import make_requests

REQUESTS = make_requests(
    prompt_tokens=[100] * 40,
    output_tokens=[60] * 40,
    reasoning_tokens=[40, 0] * 20,
    arrival_s=[0.05 * number for number in range(40)],
)
FEW_SEATS = Instance(
    latency=AffineLatency(base_s=5e-3, per_token_s=1e-4), kv_blocks=400, max_num_seqs=4
)
FEW_BLOCKS = replace(FEW_SEATS, kv_blocks=40, max_num_seqs=64)
"""For four of the requests as well."""


def run(instance: Instance = FEW_BLOCKS, **settings: int) -> Timeline:
    return simulate(REQUESTS, Pascal(quantum_tokens=10, **settings), instance)


def test_where_only_seats_are_short_nobody_is_evicted():
    few_seats, few_blocks = run(FEW_SEATS), run(FEW_BLOCKS)
    assert few_seats.preemptions.sum() == 0
    assert few_blocks.preemptions.sum() > 40
    assert np.mean(few_seats.finished_s) < np.mean(few_blocks.finished_s)


def test_decodes_beyond_the_cap_wait_without_losing_their_blocks():
    timeline = simulate(REQUESTS.take(np.arange(4)), Pascal(max_decodes=1), FEW_SEATS)
    assert timeline.preemptions.sum() == 0
    gaps_s = [np.diff(timeline.token_s(row)).max() for row in range(4)]
    assert max(gaps_s) > 10 * min(np.diff(timeline.token_s(0)).min(), 1.0)


def test_quanta_count_anew_from_a_demotion_and_for_an_answer():
    policy = Pascal(quantum_tokens=10, demote_above_tokens=100)
    view = RequestView("a", 0, 0.0, 90, phase=Phase.REASONING)
    seen = []
    for at_s, generated, phase in (
        (1.0, 10, Phase.REASONING),
        (2.0, 12, Phase.REASONING),
        (3.0, 31, Phase.REASONING),
        (4.0, 32, Phase.ANSWERING),
    ):
        view.generated_tokens, view.phase = generated, phase
        view.thinking_tokens = 32 if phase is Phase.ANSWERING else generated
        rank = policy.rank(view, LoadView(now_s=at_s))
        seen.append((rank.lane, *rank.key))
    assert seen == [(0, 1, 1.0), (1, 0, 2.0), (1, 2, 3.0), (1, 0, 4.0)]
