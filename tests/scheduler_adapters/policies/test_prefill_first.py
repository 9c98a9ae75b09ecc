"""Prefill-first, Orca and request-level batching."""

import numpy as np

from scheduler_adapters.policies.prefill_first import Orca, PrefillFirst, RequestLevel
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.policies.small_runs import mixed_requests, run


def test_prefill_first_never_mixes_and_takes_whole_prompts():
    _, steps = run(PrefillFirst(), mixed_requests(), max_tokens=4096)
    assert all(not step.num_decodes or not step.prefills for step in steps)
    assert all(processed == 0 for step in steps for processed, _ in step.prefills)
    widths = [len(s.prefills) * max(c for _, c in s.prefills) for s in steps if s.prefills]
    assert max(widths) <= 4096


def test_orca_with_reserved_blocks_runs_as_many_as_could_all_be_the_longest():
    requests = make_requests(prompt_tokens=[16] * 30, output_tokens=[20] * 30)
    _, paged = run(Orca(max_batch=16), requests, kv_blocks=40)
    timeline, reserved = run(Orca(max_batch=16, reserved_blocks=8), requests, kv_blocks=40)
    assert max(step.num_decodes + len(step.prefills) for step in paged) == 16
    assert max(step.num_decodes + len(step.prefills) for step in reserved) == 5
    assert timeline.preemptions.sum() == 0


def test_orca_mixes_whole_prompts_into_a_bounded_batch():
    _, steps = run(Orca(max_batch=5), mixed_requests())
    assert all(processed == 0 for step in steps for processed, _ in step.prefills)
    assert max(step.num_decodes + len(step.prefills) for step in steps) == 5
    assert any(step.num_decodes and step.prefills for step in steps)


def test_nobody_joins_a_request_level_batch_before_it_is_done():
    timeline, steps = run(RequestLevel(max_batch=4), mixed_requests(), max_tokens=None)
    assert max(len(step.prefills) for step in steps) == 4
    starts_s = np.unique(timeline.scheduled_s)
    for start_s in starts_s:
        earlier = timeline.scheduled_s < start_s
        assert (timeline.finished_s[earlier] <= start_s).all()
