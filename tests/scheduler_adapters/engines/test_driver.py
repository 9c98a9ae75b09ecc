"""The parts of a driver that every engine shares."""

from types import SimpleNamespace

import numpy as np

from scheduler_adapters.engines.driver import (
    EngineLimits,
    TokenTimes,
    longest_context,
    random_prompts,
)
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import make_requests

REQUESTS = make_requests(prompt_tokens=[5, 9], output_tokens=[3, 4], request_id=["a", "b"])


def test_a_simulated_instance_has_the_limits_that_the_planner_reads() -> None:
    view = SimpleNamespace(total_blocks=40, max_num_seqs=3, max_tokens=64, block_tokens=32)
    limits = EngineLimits.of(view, watermark_fraction=0.25)  # type: ignore[arg-type]
    instance = limits.instance(AffineLatency(base_s=0.01))
    assert (instance.kv_blocks, instance.max_num_seqs, instance.max_tokens) == (40, 3, 64)
    assert (instance.block_tokens, instance.watermark_blocks) == (32, 10)


def test_prompts_are_seeded_and_as_long_as_the_requests_say() -> None:
    prompts = random_prompts(REQUESTS, 0, vocabulary=50)
    assert [len(prompt) for prompt in prompts] == [5, 9]
    assert all(3 <= token < 50 for prompt in prompts for token in prompt)
    assert prompts == random_prompts(REQUESTS, 0, 50) != random_prompts(REQUESTS, 1, 50)
    alike = random_prompts(REQUESTS, 0, 50, shared_tokens=2)
    shared = max(alike, key=len)[:2]
    for same, own in zip(alike, prompts, strict=True):
        size = min(2, len(own) - 1)
        assert same == shared[:size] + own[size:]


def test_the_longest_context_has_room_for_one_more_token() -> None:
    assert longest_context(REQUESTS) == 14
    assert longest_context(REQUESTS.take(np.arange(0))) == 2


def test_token_times_make_a_timeline_in_the_order_of_the_requests() -> None:
    times, views = TokenTimes(), {name: RequestView(name, 0, 0.0, 5) for name in "ab"}
    times.admitted(views["b"], 1.0)
    times.emitted(views["b"], 1, 2.0)
    times.evicted(views["b"], 2.5)
    times.admitted(views["b"], 3.0)
    times.emitted(views["b"], 3, 4.0)
    timeline = times.timeline(REQUESTS)
    assert list(timeline.scheduled_s[1:]) == [1.0]
    assert list(timeline.token_s(1)) == [2.0, 4.0, 4.0, 4.0]
    assert list(timeline.preemptions) == [0, 1]
    assert timeline.finished_s[1] == 4.0
    assert np.isnan([timeline.scheduled_s[0], timeline.finished_s[0]]).all()
