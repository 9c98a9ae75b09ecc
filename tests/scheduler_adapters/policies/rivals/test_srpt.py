"""SRPT: remaining lengths worked out by hand, decisions by the written-out rule, preemption."""

from math import log

import numpy as np
import pytest

from scheduler_adapters.policies.rivals.srpt import SRPT, remaining_tokens
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import Phase, Rank
from scheduler_adapters.workload.requests import make_requests
from scheduler_adapters.workload.score_sources import with_lengths
from tests.scheduler_adapters.policies.rivals.written_out import RUNS, some_instance, some_requests
from tests.scheduler_adapters.policies.small_runs import INSTANCE, run
from tests.scheduler_adapters.simulator.any_policy import assert_equal, serve
from tests.scheduler_adapters.simulator.reference import ReferenceEngine

SEEDS = [range(8), pytest.param(range(8, RUNS), marks=pytest.mark.slow)]
QUARTILES = ((0.25, 100.0), (0.5, 200.0), (0.75, 400.0))


@pytest.mark.parametrize(
    ("generated", "left"),
    [
        (0, 200),
        (100, 100 + 100 / 0.25 * 0.125 * 2),  # a share of .625 is halfway from 200 to 400
        (200, 200),  # half of the longer half: 400
        (400, 200 / log(2) * log(2)),  # the share left halves every 200 tokens
        (999, 200),
    ],
)
def test_the_median_remainder_grows_with_the_tokens_so_far(generated, left):
    assert remaining_tokens(QUARTILES, generated) == pytest.approx(left)


def test_a_known_length_counts_down():
    assert [remaining_tokens(((0.1, 50.0), (0.5, 50.0), (0.9, 50.0)), n) for n in (0, 20, 49)] == [
        50, 30, 1,
    ]  # fmt: skip


class EveryToken(ReferenceEngine):
    """Everything by the remainder at the start of each step; late requests are not displaced."""

    def _fill(self):
        for live in self.live:
            # An admitted request without a first chunk still has the rank of its wait.
            if live.view.phase is not Phase.PREFILL or live.prefill_left < live.to_prefill:
                self._ask(live)
        return super()._fill()

    def _ask(self, live):
        view = live.view
        known = view.quantiles or ((0.5, 256),)
        first = int(dict(known)[0.5])
        key = (remaining_tokens(known, view.generated_tokens),)
        is_late = view.phase is not Phase.WAITING and view.generated_tokens >= 0.8 * first
        live.rank = Rank(key, evict_key=None if is_late else key)


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_simulator_decides_by_the_written_out_rule(seeds):
    num_evicted = 0
    for seed in seeds:
        requests, instance = some_requests(seed), some_instance(seed)
        expected = EveryToken(SRPT(every_tokens=1), instance).run(requests)
        assert_equal(serve(Engine(SRPT(every_tokens=1), instance), requests), expected)
        slow = ReferenceEngine(SRPT(), instance).run(requests)
        assert_equal(simulate(requests, SRPT(), instance, loop="compiled"), slow)
        num_evicted += expected.preemptions.sum()
    assert num_evicted > 0


def test_a_short_request_takes_blocks_of_ones_not_nearly_done():
    requests = make_requests(
        prompt_tokens=[16, 40], output_tokens=[90, 5], arrival_s=[0.0, 0.5], scores=[90, 5]
    )
    requests, scarce = with_lengths(requests, SRPT()), {"kv_blocks": 7, "watermark_fraction": 0.0}
    timeline, _ = run(SRPT(), requests, **scarce)
    assert timeline.preemptions.tolist() == [1, 0]
    patient, _ = run(SRPT(preempt_share=0), requests, **scarce)
    assert patient.preemptions.tolist() == [0, 0]


def test_true_lengths_end_a_burst_as_the_oracle_given_memory():
    lengths = np.random.default_rng(0).permutation(np.arange(1, 201))
    requests = make_requests(prompt_tokens=[8] * 200, output_tokens=lengths, scores=lengths)
    assert_equal(
        simulate(with_lengths(requests, SRPT()), SRPT(), INSTANCE),
        simulate(requests, pars(starve_after_s=None), INSTANCE),
    )
