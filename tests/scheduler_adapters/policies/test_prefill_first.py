"""Prefill-first, Orca and request-level batching."""

import numpy as np

from scheduler_adapters.policies.prefill_first import PrefillFirst, RequestLevel
from tests.scheduler_adapters.policies.small_runs import mixed_requests, run


def test_prefill_first_never_mixes_and_takes_whole_prompts():
    _, steps = run(PrefillFirst(), mixed_requests(), max_tokens=4096)
    assert all(not step.num_decodes or not step.prefills for step in steps)
    assert all(processed == 0 for step in steps for processed, _ in step.prefills)
    widths = [len(s.prefills) * max(c for _, c in s.prefills) for s in steps if s.prefills]
    assert max(widths) <= 4096


def test_nobody_joins_a_request_level_batch_before_it_is_done():
    timeline, steps = run(RequestLevel(max_batch=4), mixed_requests(), max_tokens=None)
    assert max(len(step.prefills) for step in steps) == 4
    for start_s in np.unique(timeline.scheduled_s):
        assert (timeline.finished_s[timeline.scheduled_s < start_s] <= start_s).all()


def test_a_static_batch_of_pars_has_the_shortest_predictions():
    requests = mixed_requests(20, rate_per_s=1e9)
    policy = RequestLevel(max_batch=4, inside="pars-paper")
    timeline, _ = run(policy, requests.with_scores(requests.output_tokens), max_tokens=None)
    order = np.argsort(timeline.scheduled_s, kind="stable")[4:]  # the first batch met no queue
    assert (np.diff(requests.output_tokens[order].reshape(-1, 4).max(axis=1)) >= 0).all()
    assert policy.name == "request-level+pars-paper"
