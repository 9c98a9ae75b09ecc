"""The virtual token counter: decisions by the written-out shares, in any order inside a client."""

import numpy as np
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.policies.rivals.written_out import RUNS, some_instance, some_requests
from tests.scheduler_adapters.policies.small_runs import INSTANCE
from tests.scheduler_adapters.simulator.any_policy import assert_equal, serve
from tests.scheduler_adapters.simulator.reference import ReferenceEngine

ORDERS = {"fcfs": {}, "pars": {"guard": "none"}}


@pytest.mark.parametrize("inside", ORDERS)
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, RUNS), marks=pytest.mark.slow)])
def test_the_simulator_decides_by_the_written_out_shares(seeds, inside):
    for seed in seeds:
        requests, instance = some_requests(seed), some_instance(seed)
        requests.quantiles[:] = [()] * len(requests)  # the written-out shares expect usual lengths

        def make():
            return load_policy("virtual-token-counter", inside=inside, **ORDERS[inside])

        expected = ReferenceEngine(make(), instance).run(requests)
        assert_equal(serve(Engine(make(), instance), requests), expected)


def test_a_learned_order_inside_a_client_leaves_the_clients_their_shares():
    clients = np.array(["busy"] * 40 + ["other"] * 10)
    lengths = np.tile([200, 10], 25)
    requests = make_requests(
        prompt_tokens=[10] * 50, output_tokens=lengths, scores=lengths, client=clients
    )
    few = {"kv_blocks": 2000, "max_num_seqs": 4, "latency": INSTANCE.latency}

    def ended_s(policy):
        return simulate(requests, policy, type(INSTANCE)(**few)).finished_s

    fcfs_s, learned = ended_s(FCFS()), load_policy("virtual-token-counter", inside="pars")
    fair_s, both_s = ended_s(load_policy("virtual-token-counter")), ended_s(learned)
    is_other = clients == "other"
    assert fair_s[is_other].mean() < 0.6 * fcfs_s[is_other].mean()
    assert both_s[is_other].mean() < 0.7 * fcfs_s[is_other].mean()
    assert both_s.mean() < 0.9 * fair_s.mean()
    assert learned.name == "virtual-token-counter+pars"
    with pytest.raises(ConfigError, match="no policy named 'nobody'"):
        load_policy("virtual-token-counter", inside="nobody")
