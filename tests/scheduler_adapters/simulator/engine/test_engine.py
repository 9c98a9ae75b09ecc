"""The laws of the simulator, whatever the workload; and how it takes what cannot be served."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import SchedulingError
from scheduler_adapters.checks import LAWS, ObservedLatency, Run
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.views import Capability, LoadView, Rank, RequestView, StepRule
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import workloads

LATENCY = AffineLatency(base_s=0.01, per_token_s=1e-4, per_context_token_s=1e-7)


instances = st.builds(
    Instance,
    latency=st.just(LATENCY),
    kv_blocks=st.integers(5, 60),
    max_num_seqs=st.integers(1, 8),
    max_tokens=st.one_of(st.none(), st.integers(1, 200)),
    watermark_fraction=st.sampled_from([0.0, 0.01, 0.1]),
    decode_headroom_blocks=st.integers(0, 1),
)


@settings(max_examples=100, deadline=None)
@given(workloads(), instances, st.sampled_from([FCFS, pars]))
def test_every_run_keeps_every_law(requests, instance, make_policy):
    observed = ObservedLatency(instance.latency)
    timeline = simulate(requests, make_policy(), replace(instance, latency=observed))
    summary = summarize(timeline)
    assert summary.num_finished + summary.num_rejected == len(requests)

    served = ~timeline.rejected
    if served.any():
        seen = Run(
            policy=make_policy(),
            instance=instance,
            timeline=timeline.take(served),
            steps=observed.steps,
            make_policy=make_policy,
        )
        assert [law(seen) for law in LAWS] == [""] * len(LAWS)


def test_two_requests_by_hand():
    """Budget 8: prompt 10 takes steps of 8 and 2 tokens; the second prompt fills the rest."""
    requests = make_requests(prompt_tokens=[10, 4], output_tokens=[3, 2])
    instance = Instance(
        latency=AffineLatency(base_s=1.0, per_token_s=0.1), kv_blocks=10, max_tokens=8
    )
    timeline = simulate(requests, FCFS(), instance)
    # Steps: 8 tokens | 2 + 4 | 1 + 1 | 1
    np.testing.assert_allclose(timeline.tick_s, [1.8, 3.4, 4.6, 5.7])
    np.testing.assert_allclose(timeline.token_s(0), [3.4, 4.6, 5.7])
    np.testing.assert_allclose(timeline.token_s(1), [3.4, 4.6])
    np.testing.assert_allclose(timeline.scheduled_s, [0.0, 1.8])


def test_one_seat_waits_as_pollaczek_and_khinchine_say():
    load, service_s, count = 0.5, 0.01, 100_000
    requests = make_requests(
        prompt_tokens=np.ones(count),
        output_tokens=np.ones(count),
        arrival_s=arrivals_s(count, rate_per_s=load / service_s, seed=1),
    )
    instance = Instance(latency=AffineLatency(base_s=service_s), kv_blocks=10, max_num_seqs=1)
    summary = summarize(simulate(requests, FCFS(), instance, loop="python"))
    assert summary.queueing_s.mean == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.02)


class Thrashes(Policy):
    """A waiting request may take the place of a running one, so none makes progress."""

    name = "thrashes"
    traits = Traits(requires=frozenset({Capability.EVICT}))
    rule = StepRule(displace=True)

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank(evict_key=(float(request.phase),))


def test_an_eviction_loop_is_detected_and_the_policy_named():
    requests = make_requests(prompt_tokens=[100, 100], output_tokens=[5, 5])
    one_fits = Instance(latency=LATENCY, kv_blocks=9, max_tokens=8)
    with pytest.raises(SchedulingError, match="'thrashes' evicts without end"):
        simulate(requests, Thrashes(), one_fits)


def test_a_prefill_after_an_eviction_may_end_in_the_next_step():
    """Each decode insists on a free block: one is evicted, admitted and prefilled in one step."""
    instance = Instance(
        latency=AffineLatency(base_s=1.0),
        kv_blocks=2,
        watermark_fraction=0.0,
        decode_headroom_blocks=1,
    )
    engine = Engine(FCFS(), instance)
    engine.submit_all(make_requests(prompt_tokens=[3, 3], output_tokens=[9, 9]))
    start_s = engine.advance(1.0)
    assert engine.quiet_until_s(start_s) > 8.0
    assert engine.quiet_until_s(start_s, heeds_ends=True) <= 2.0
    engine.advance(1.5)
    assert engine.view().num_answering == 2
    assert engine.record.preemptions[1] == 1
