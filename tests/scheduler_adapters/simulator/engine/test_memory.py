"""KV memory by hand: which resident is evicted, and which waiting request displaces it."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from scheduler_adapters.policy import Policy, Traits, load_policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import Capability, LoadView, Rank, RequestView, StepRule
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import EveryToken, serve

SECONDS = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=6, watermark_fraction=0.0)


class ByScore(Policy):
    """The score is key and eviction key; None of the eviction key for a score of 9."""

    name = "by-score"
    traits = Traits(requires=frozenset({Capability.EVICT}))

    def __init__(self, rule: StepRule | None = None) -> None:
        self.rule = rule or StepRule()

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        score = request.score or 0.0
        return Rank((score,), evict_key=None if score == 9 else (score,))


class Evictions(EngineObserver):
    def __init__(self) -> None:
        self.rows: list[int] = []

    def evicted(self, request, now_s):
        self.rows.append(request.number)


def evicted(scores, *, rule=None, arrival_s=None, instance=SECONDS, prompt=31, output=4):
    """The rows that lose their blocks, in order; each request has 2 blocks and soon needs 3."""
    count, told = len(scores), Evictions()
    requests = make_requests(
        prompt_tokens=np.broadcast_to(prompt, count),
        output_tokens=np.broadcast_to(output, count),
        scores=scores,
        arrival_s=arrival_s or [0.0] * count,
    )
    engine = Engine(ByScore(rule), instance, observers=[told])
    serve(engine, requests)
    assert engine.load.used_blocks == 0
    return told.rows


@pytest.mark.parametrize(
    ("scores", "rows"), [([1, 2, 3], [2]), ([3, 2, 1], [0]), ([1, 3, 2], [1]), ([5, 5, 5], [2])]
)
def test_a_decode_without_a_block_evicts_the_greatest_of_equals_the_latest(scores, rows):
    assert evicted(scores) == rows


def test_without_an_evict_key_a_request_goes_for_no_other_only_for_itself():
    assert evicted([1, 9, 9]) == [0]  # it asks first, and nobody else may go


@pytest.mark.parametrize(
    ("scores", "prompt", "output", "rows"),
    [
        ([5, 6, 7, 1], 20, 4, [2]),
        ([5, 6, 7, 7], 20, 2, []),
        ([5, 6, 7, 8], 20, 2, []),
        # The last needs 5 of 6 blocks; the first, which has 2, is better.
        ([1, 6, 5], [20, 20, 70], [8, 8, 2], []),
    ],
)
def test_a_better_waiting_request_displaces_the_fewest_that_make_room_or_nobody(
    scores, prompt, output, rows
):
    arrival_s = [*[0.0] * (len(scores) - 1), 0.5]
    rule = StepRule(displace=True)
    found = evicted(scores, rule=rule, arrival_s=arrival_s, prompt=prompt, output=output)
    assert found == rows


def test_for_a_seat_alone_nobody_goes_until_blocks_are_missing_as_well():
    # Two seats, taken by prompts of 20 tokens; the best request waits from 0.5 s on and needs 3
    # blocks. Of 7 the others hold 4 until their contexts pass 32 tokens, behind the step at 12 s.
    requests = make_requests(
        prompt_tokens=[20, 20, 40],
        output_tokens=[40, 40, 2],
        scores=[5, 6, 1],
        arrival_s=[0.0, 0.0, 0.5],
    )
    gone_s = []
    for more in ([], [EveryToken()]):
        told = Evictions()
        instance = replace(SECONDS, kv_blocks=7, max_num_seqs=2)
        rule = StepRule(displace=True)
        engine = Engine(ByScore(rule), instance, observers=[told, *more])
        engine.submit_all(requests)
        while not told.rows:
            engine.advance(engine.load.now_s + 1.0)
        assert told.rows == [1]
        gone_s.append(engine.load.now_s)
        engine.advance(inf)
    assert gone_s[0] == gone_s[1] > 12.0


def test_displacement_ends_at_the_cap_on_admissions():
    rule = StepRule(displace=True, max_admissions=1)
    arrival_s = [0.0, 0.0, 0.0, 3.5, 3.5]
    told = Evictions()
    requests = make_requests(
        prompt_tokens=[20] * 5, output_tokens=[9] * 5, scores=[5, 6, 7, 1, 2], arrival_s=arrival_s
    )
    engine = Engine(ByScore(rule), SECONDS, observers=[told])
    engine.submit_all(requests)
    engine.advance(4.5)
    assert told.rows == [2]
    engine.advance(5.5)
    assert told.rows == [2, 1]


def test_headroom_is_insisted_on_where_no_block_is_needed():
    # Two requests of 3 blocks fill the memory, and no token needs another block.
    for headroom, rows in ((0, []), (1, [1, 1])):
        instance = replace(SECONDS, decode_headroom_blocks=headroom)
        assert evicted([1, 2], instance=instance, prompt=40, output=3) == rows


def test_a_step_from_which_a_request_was_evicted_is_not_repeated_while_it_may_come_back():
    engine = Engine(ByScore(), replace(SECONDS, kv_blocks=4))
    requests = make_requests(prompt_tokens=[30, 40], output_tokens=[9, 9], scores=[1.0, 2.0])
    engine.submit_all(requests)
    engine.advance(0.5)
    evicted, step = engine.requests[1], engine.step
    assert evicted.is_waiting
    evicted.evicted_s = engine.load.now_s
    step.is_steady = True
    engine.memory.displace()
    assert evicted.is_waiting
    assert not step.is_steady


def test_residents_that_neither_prefill_nor_return_decode():
    engine = Engine(ByScore(), SECONDS)
    memory, load = engine.memory, engine.load
    for row in range(6):
        memory.residents[row] = RequestState(RequestView(str(row), row, 0.0, 1), 1, 0)
    engine.ranked.num_waiting, memory.num_prefilling, memory.num_returning = 5, 1, 2
    memory.update_load()
    assert (load.num_waiting, load.num_prefilling, load.num_decoding) == (5, 1, 3)


def plain_and_kept(requests, **limits):
    """Timelines without and with prefix caching."""
    instance = Instance(watermark_fraction=0.0, **limits)
    return [
        simulate(requests, load_policy("fcfs"), instance, loop="python", kind=kind)
        for kind in ("plain", "vllm")
    ]


def test_a_preempted_request_prefills_only_what_was_taken_meanwhile():
    # Of 7 blocks the second request gives its 5 back when the first needs a third; the first
    # takes at most 2 more until it ends, so at least 3 blocks = 48 tokens are kept.
    latency = AffineLatency(base_s=1.0, per_token_s=0.001)
    requests = make_requests(prompt_tokens=[16, 64], output_tokens=[40, 40])
    plain, kept = plain_and_kept(requests, latency=latency, kv_blocks=7, max_tokens=None)
    assert plain.preemptions.tolist() == kept.preemptions.tolist() == [0, 1]
    saved_s = plain.finished_s[1] - kept.finished_s[1]
    assert saved_s == pytest.approx(0.001 * 16 * round(saved_s / 0.016))
    assert saved_s >= 0.001 * 48 - 1e-9


def test_a_prefill_in_several_chunks_resumes_where_its_blocks_end():
    # 47 tokens per step: the second prompt is evicted as soon as it has all of its 96 tokens but
    # none generated, and comes back when the first is done: 80 tokens are still there.
    requests = make_requests(prompt_tokens=[31, 96], output_tokens=[20, 2])
    plain, kept = plain_and_kept(requests, latency=SECONDS.latency, kv_blocks=8, max_tokens=47)
    assert plain.preemptions.tolist() == kept.preemptions.tolist() == [0, 1]
    assert plain.first_token_s.tolist() == [1, 23]
    assert kept.first_token_s.tolist() == [1, 22]
