"""DistServe: two pools, and requests that wait with their KV until a decode instance has room."""

import numpy as np
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.placements.distserve import DistServe
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.placements.views import view

REQUEST = RequestView("a", 0, 0.0, 79, generated_tokens=1)
"""80 tokens: five blocks."""


def test_a_prompt_goes_to_the_prefill_instance_with_the_fewest_requests():
    views = [
        view(0, "prefill", num_waiting=2),
        view(1, "prefill", num_waiting=1),
        view(2, "decode"),
    ]
    assert DistServe().place(REQUEST, views) == 1


@pytest.mark.parametrize(
    ("views", "chosen"),
    [
        ([view(1, "decode", 10, num_answering=2), view(2, "decode", 10, num_answering=1)], 2),
        ([view(1, "decode", used_blocks=95), view(2, "decode", 10, num_answering=9)], 1),
        ([view(1, "decode", used_blocks=96), view(2, "decode", 10, num_answering=9)], 2),
        ([view(1, "decode", used_blocks=96)], None),
        ([view(1, "decode", 10, waiting_prompt_tokens=79)], 1),
        ([view(1, "decode", 10, waiting_prompt_tokens=80)], None),
        ([view(1, "decode", 10, booked_blocks=5)], None),
        ([view(1, "prefill", 10), view(2, "both", 10)], 2),
    ],
)
def test_a_decode_instance_pulls_what_fits_while_few_wait_there(views, chosen):
    assert DistServe().at_prefill_end(REQUEST, 0, [view(0, "prefill"), *views]) == chosen


def test_where_a_pool_has_died_the_other_one_serves_or_requests_wait():
    assert DistServe().place(REQUEST, [view(0, "decode")]) == 0
    assert DistServe().at_prefill_end(REQUEST, 0, [view(0, "prefill")]) is None


def test_wrong_shares_are_refused():
    with pytest.raises(ConfigError, match="max_waiting_fraction is 0"):
        DistServe(max_waiting_fraction=0)


SECONDS = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=20, watermark_fraction=0.0)


def test_prompts_hold_their_blocks_until_a_decode_instance_has_room():
    # Nine blocks each, of twenty: two decode at a time, and two prompts wait where they are.
    requests = make_requests(prompt_tokens=[135] * 5, output_tokens=[9] * 5)
    run = simulate_cluster(
        requests,
        DistServe(max_waiting_fraction=1.0),
        FCFS,
        [SECONDS] * 2,
        fabric=Fabric(kv_bytes_per_token=1, bytes_per_s=1440.0),
        roles=["prefill", "decode"],
    )
    timeline = run.timeline
    assert np.isfinite(timeline.finished_s).all()
    assert timeline.instance.tolist() == timeline.migrations.tolist() == [1] * 5
    first_s = timeline.first_token_s
    # Two were prefilled at once; the third found their blocks taken until the first copy landed.
    assert first_s[:2].tolist() == [1.0, 1.0]
    assert timeline.scheduled_s[2] == run.migrations[0].end_s == pytest.approx(1.2)
    starts_s = np.sort([timeline.token_s(row)[1] for row in range(5)])
    assert starts_s[2] >= timeline.finished_s.min()
