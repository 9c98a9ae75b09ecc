"""An instance: its limits, its presets, and the policies it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.errors import ConfigError, UnsupportedByEngine
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policy import POLICIES, Traits, load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import Capability
from scheduler_adapters.workload.requests import make_requests

INSTANCE = Instance(latency=AffineLatency(base_s=0.01), kv_blocks=10)
HOSTED = replace(INSTANCE, host=HostLink(kv_bytes_per_token=1))


@pytest.mark.parametrize("name", POLICIES)
def test_an_instance_can_run_every_policy_of_ours(name):
    INSTANCE.check(load_policy(name))


@pytest.mark.parametrize(
    "policy", [FCFS(offload=True), RoundRobin(offload=True), Pascal(offload=True)]
)
def test_offloading_wants_host_memory_and_says_how_to_give_it(policy):
    with pytest.raises(UnsupportedByEngine, match=r"HostLink.*--host-gb-per-s 50"):
        INSTANCE.check(policy)
    HOSTED.check(policy)
    assert HOSTED.capabilities - INSTANCE.capabilities == {Capability.OFFLOAD}


class Teleporting(FCFS):
    """Requires what is no capability at all."""

    traits = Traits(requires=frozenset({"TELEPORT"}))  # type: ignore[arg-type]


@pytest.mark.parametrize("instance", [INSTANCE, HOSTED])
def test_an_unknown_capability_is_refused(instance):
    requests = make_requests(prompt_tokens=[1], output_tokens=[1])
    with pytest.raises(UnsupportedByEngine, match="TELEPORT"):
        simulate(requests, Teleporting(), instance)


def test_a_request_needs_its_last_block_and_the_reserve():
    instance = replace(INSTANCE, watermark_fraction=0.2)  # 2 of 10 blocks
    prompt, output = np.array([100, 100]), np.array([28, 29])
    assert instance.cannot_hold(prompt, output).tolist() == [False, True]
    assert replace(instance, watermark_fraction=0.0).cannot_hold(prompt, output + 32).tolist() == [
        False,
        True,
    ]


def test_changes_of_a_preset_are_fields_of_the_instance():
    instance = Instance.preset("llama-3-8b@a100-80g", max_num_seqs=7)
    assert instance.max_num_seqs == 7
    assert instance.kv_blocks > 1000
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        Instance.preset("llama-3-8b@a100-80g", max_num_seqs=0)
