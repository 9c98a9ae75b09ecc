"""First come, first served, with and without host memory."""

import numpy as np

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import Traits, load_policy
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.views import Capability, LoadView, RequestView
from tests.scheduler_adapters.policies.small_runs import mixed_requests, run


def test_requests_start_in_the_order_in_which_they_came():
    timeline, _ = run(FCFS(), mixed_requests(80, rate_per_s=40), max_num_seqs=4)
    assert (np.diff(timeline.scheduled_s) >= 0).all()


def test_a_rank_is_asked_for_once():
    rank = FCFS().rank(RequestView("r", 0, 0.0, 10), LoadView())
    assert (rank.key, rank.sticky) == ((), True)


def test_what_is_evicted_goes_to_the_host_and_is_not_recomputed():
    offloading = load_policy("fcfs", offload=True)
    assert offloading.traits == Traits(requires=frozenset({Capability.OFFLOAD}), is_static=True)
    requests = mixed_requests(40, rate_per_s=60)
    host = HostLink(kv_bytes_per_token=1, bytes_per_s=1e18)
    scarce = {"kv_blocks": 120, "host": host, "watermark_fraction": 0.0}
    kept, steps = run(offloading, requests, **scarce)
    assert kept.preemptions.sum() > 0
    needed = int((requests.prompt_tokens + requests.output_tokens - 1).sum())
    assert sum(step.tokens for step in steps) == needed
    _, again = run(FCFS(), requests, **scarce)
    assert sum(step.tokens for step in again) > needed
