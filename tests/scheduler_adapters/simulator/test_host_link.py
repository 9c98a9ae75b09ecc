"""Host memory: the shared link by hand, and KV blocks that are never lost on their way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import ConfigError, UnsupportedByEngine
from scheduler_adapters.policies.fcfs import OffloadingFCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.host_link import Copies, HostLink
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import LoadView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import EveryToken, serve

LINK = HostLink(kv_bytes_per_token=1, bytes_per_s=100.0)
CONSTANT = AffineLatency(base_s=1.0)


starts = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 500)), min_size=1, max_size=8).map(
    sorted
)
"""(time, bytes) of copies."""


def landings(link: HostLink, *starts: tuple[float, int]) -> dict[int, float]:
    """When copies of (start, bytes) land, by their place in `starts`."""
    copies, landed = Copies(link, block_tokens=1), {}
    for row, (start_s, size) in enumerate(starts):
        while copies.next_landing_s <= start_s:
            landed |= dict.fromkeys(copies.land(at_s := copies.next_landing_s), at_s)
        copies.start(start_s, row, size)
    while (at_s := copies.next_landing_s) < np.inf:
        landed |= dict.fromkeys(copies.land(at_s), at_s)
    return landed


def test_copies_share_the_link_equally():
    # 100 bytes alone for .5 s, then at half the rate; the second has 50 left when the first ends.
    assert landings(LINK, (0.0, 100), (0.5, 100)) == {0: 1.5, 1: 2.0}


def test_copies_in_a_queue_go_one_after_the_other():
    fifo = replace(LINK, sharing="fifo")
    assert landings(fifo, (0.0, 100), (0.5, 100), (9.0, 50)) == {0: 1.0, 1: 2.0, 2: 9.5}


def test_latency_comes_after_the_last_byte_and_holds_nobody_up():
    slow = replace(LINK, latency_s=3.0)
    assert landings(slow, (0.0, 100), (1.0, 100)) == {0: 4.0, 1: 5.0}


@given(starts)
def test_the_last_copy_ends_at_the_same_time_however_the_link_is_shared(starts):
    fair, fifo = (
        max(landings(replace(LINK, sharing=sharing), *starts).values())
        for sharing in ("fair", "fifo")
    )
    assert fair == pytest.approx(fifo)


@given(starts)
def test_how_often_one_asks_does_not_matter(starts):
    seldom, often, landed = Copies(LINK, block_tokens=1), Copies(LINK, block_tokens=1), []
    for row, (start_s, size) in enumerate(starts):
        seldom.start(start_s, row, size)
        often.start(start_s, row, size)
        end_s = starts[row + 1][0] if row + 1 < len(starts) else 1000.0
        for at_s in np.linspace(start_s, end_s, 7).tolist():
            landed += often.land(at_s)
    assert seldom.land(1000.0) == landed


def test_an_offloaded_request_goes_on_where_it_was():
    """Two requests of 16 + 20 tokens, 4 blocks: at 17 tokens the second has to go.

    Its 2 blocks are 32 tokens: a second there, a second back. The first ends at 20 s; until then
    there is no room. Computed anew it would end at 23 s, and so it does here: 20 + 1 s for the copy
    and 2 steps, without the step that computes it anew.
    """
    requests = make_requests(prompt_tokens=[16, 16], output_tokens=[20, 20])
    host = HostLink(kv_bytes_per_token=1, bytes_per_s=32.0)
    instance = Instance(
        latency=CONSTANT, kv_blocks=4, watermark_fraction=0.0, max_tokens=64, host=host
    )
    timeline = simulate(requests, OffloadingFCFS(), instance)
    assert timeline.preemptions.tolist() == [0, 1]
    assert timeline.finished_s.tolist() == [20.0, 24.0]
    tokens_s = timeline.token_s(1)
    assert tokens_s.tolist() == [*range(1, 18), 22.0, 23.0, 24.0]


class BlockCounter(EngineObserver):
    """Looks at all KV blocks after every step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        engine.observe(self)

    def ran(self, load: LoadView, duration_s: float, num_resident: int) -> None:
        self.count_blocks()

    def count_blocks(self) -> None:
        state, stored = self.engine.state, self.engine.stored
        device = host = 0
        for live in state.lives:
            if live.row in state.residents:
                device += self.held_blocks(live)
                assert not live.is_waiting
            else:
                assert live.batch is None
            assert live.stored_blocks > 0 or not live.is_moving
            host += live.stored_blocks
        assert device == state.load.used_blocks <= state.load.total_blocks
        assert host == stored.used_host_blocks <= stored.max_host_blocks

    def held_blocks(self, live) -> int:
        """Blocks of a resident, in a step that has been filled."""
        if live.is_moving and not live.prefill_left:
            return live.stored_blocks
        is_placed = live.batch in self.engine.filler.step.placed
        return -(-(live.now_context - (live.batch is not None and not is_placed)) // 16)


@st.composite
def crowds(draw):
    count = draw(st.integers(1, 20))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    output_tokens = random.integers(1, 80, count)
    return make_requests(
        prompt_tokens=random.integers(1, 90, count),
        output_tokens=output_tokens,
        reasoning_tokens=output_tokens // 2,
        arrival_s=np.cumsum(random.exponential(draw(st.sampled_from([0.01, 0.3])), count)),
    )


@settings(max_examples=60, deadline=None)
@given(
    crowds(),
    st.sampled_from(
        [
            OffloadingFCFS(),
            RoundRobin(quantum_tokens=9, offload=True),
            Pascal(quantum_tokens=9, demote_above_tokens=60, offload=True),
        ]
    ),
    st.sampled_from([500.0, 20_000.0]),
    st.sampled_from([None, 6]),
)
def test_every_block_is_on_the_device_or_on_the_host(requests, policy, bytes_per_s, max_blocks):
    host = HostLink(kv_bytes_per_token=1, bytes_per_s=bytes_per_s, max_blocks=max_blocks)
    latency = AffineLatency(base_s=0.01, per_token_s=1e-4)
    instance = Instance(latency=latency, kv_blocks=16, max_num_seqs=6, max_tokens=40, host=host)
    engine = Engine(policy, instance, observers=[EveryToken()])
    counter = BlockCounter(engine)
    timeline = serve(engine, requests)
    engine.filler.step.placed = []
    counter.count_blocks()
    assert engine.state.load.used_blocks == engine.stored.used_host_blocks == 0
    assert (np.isfinite(timeline.finished_s) | timeline.rejected).all()


def test_a_host_spares_the_work_that_recomputing_costs():
    requests = make_requests(prompt_tokens=[200] * 12, output_tokens=[300] * 12)
    latency = AffineLatency(base_s=0.01, per_token_s=1e-4)
    device = Instance(latency=latency, kv_blocks=150, max_num_seqs=12)
    fast = replace(device, host=HostLink(kv_bytes_per_token=1, bytes_per_s=1e9))
    anew = simulate(requests, RoundRobin(quantum_tokens=50), device)
    kept = simulate(requests, RoundRobin(quantum_tokens=50, offload=True), fast)
    assert anew.preemptions.sum() > 0
    assert kept.preemptions.sum() > 0
    assert kept.finished_s.max() < anew.finished_s.max()


@pytest.mark.parametrize(
    "policy", [OffloadingFCFS(), RoundRobin(offload=True), Pascal(offload=True)]
)
def test_without_a_host_a_policy_that_offloads_is_refused(policy):
    requests = make_requests(prompt_tokens=[1], output_tokens=[1])
    with pytest.raises(UnsupportedByEngine, match="no host memory; give it one"):
        simulate(requests, policy, Instance(latency=CONSTANT, kv_blocks=10))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_bytes_per_token", 0),
        ("bytes_per_s", 0.0),
        ("bytes_per_s", float("nan")),
        ("latency_s", -1.0),
        ("sharing", "none"),
        ("max_blocks", -1),
    ],
)
def test_a_link_that_cannot_be_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        replace(LINK, **{field: value})


def test_the_link_of_a_model_knows_its_kv_and_an_unknown_model_is_refused():
    assert HostLink.of_model("mistral-7b").kv_bytes_per_token == 131_072
    with pytest.raises(ConfigError, match="llama-3-8b"):
        HostLink.of_model("gpt-5")
