"""What `simulate_cluster` refuses before anything runs."""

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.placement import load_placement
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.cluster.test_request_migrations import SECONDS


@pytest.mark.parametrize(
    ("instances", "options", "error"),
    [
        ([], {}, "one or more"),
        ([SECONDS], {"roles": ["prefill", "decode"]}, "give one to each"),
        ([SECONDS], {"clients": 0}, "clients"),
    ],
)
def test_settings_that_cannot_be_are_refused(instances, options, error):
    requests = make_requests(prompt_tokens=[5], output_tokens=[5])
    with pytest.raises(ConfigError, match=error):
        simulate_cluster(requests, load_placement("least-kv"), FCFS, instances, **options)
