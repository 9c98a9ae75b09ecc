"""KV memory by hand: which resident is evicted, and which waiting request displaces it."""

from dataclasses import replace

import pytest

from scheduler_adapters.policy import Policy, Traits, load_policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import Capability, LoadView, Rank, RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import serve

SECONDS = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=6, watermark_fraction=0.0)


class ByScore(Policy):
    """The score is key and eviction key."""

    name = "by-score"
    traits = Traits(requires=frozenset({Capability.EVICT}))

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank((request.score or 0.0,), evict_key=(request.score or 0.0,))


@pytest.mark.parametrize(("headroom", "preemptions"), [(0, [0, 0]), (1, [0, 2])])
def test_headroom_is_insisted_on_where_no_block_is_needed(headroom, preemptions):
    # Two requests of 3 blocks fill the memory, and no token needs another block.
    requests = make_requests(prompt_tokens=[40] * 2, output_tokens=[3] * 2, scores=[1, 2])
    engine = Engine(ByScore(), replace(SECONDS, decode_headroom_blocks=headroom))
    assert serve(engine, requests).preemptions.tolist() == preemptions
    assert engine.load.used_blocks == 0


def plain_and_kept(requests, **limits):
    """Timelines without and with prefix caching."""
    instance = Instance(watermark_fraction=0.0, **limits)
    return [
        simulate(requests, load_policy("fcfs"), instance, loop="python", kind=kind)
        for kind in ("plain", "vllm")
    ]


def test_a_preempted_request_prefills_only_what_was_taken():
    # Of 7 blocks the second request gives its 5 back when the first needs a third; the first
    # takes at most 2 more until it ends, so at least 3 blocks = 48 tokens are kept.
    latency = AffineLatency(base_s=1.0, per_token_s=0.001)
    requests = make_requests(prompt_tokens=[16, 64], output_tokens=[40, 40])
    plain, kept = plain_and_kept(requests, latency=latency, kv_blocks=7, max_tokens=None)
    assert plain.preemptions.tolist() == kept.preemptions.tolist() == [0, 1]
    saved_s = plain.finished_s[1] - kept.finished_s[1]
    assert saved_s == pytest.approx(0.001 * 16 * round(saved_s / 0.016))
    assert saved_s >= 0.001 * 48 - 1e-9


def test_a_prefill_in_chunks_resumes_where_its_blocks_end():
    # 47 tokens per step: the second prompt is evicted as soon as it has all of its 96 tokens but
    # none generated, and comes back when the first is done: 80 tokens are still there.
    requests = make_requests(prompt_tokens=[31, 96], output_tokens=[20, 2])
    plain, kept = plain_and_kept(requests, latency=SECONDS.latency, kv_blocks=8, max_tokens=47)
    assert plain.preemptions.tolist() == kept.preemptions.tolist() == [0, 1]
    assert plain.first_token_s.tolist() == [1, 23]
    assert kept.first_token_s.tolist() == [1, 22]
