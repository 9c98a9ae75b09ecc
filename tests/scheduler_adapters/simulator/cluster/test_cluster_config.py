"""Settings of a cluster: roles of its instances, its network, and what cannot be."""

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.simulator.cluster.cluster_config import ClusterConfig


def test_roles_are_prefill_then_decode_then_elastic():
    assert ClusterConfig(placement="least-kv", instances=2).roles() is None
    pools = {"instances": 6, "prefill_instances": 2, "elastic_instances": 1}
    roles = ClusterConfig(placement="phasor", **pools).roles()
    assert roles == ["prefill", "prefill", "decode", "decode", "decode", "both"]


def test_the_fabric_carries_the_profile_s_kv():
    options = ClusterConfig(profile="qwen2.5-7b@v100-32g", fabric_gb_per_s=25)
    assert options.fabric().bytes_per_s == 25e9
    assert options.fabric().kv_bytes_per_token == 57_344
    assert options.loaded_placement() is None
    assert ClusterConfig(placement="random").loaded_placement().name == "random"


@pytest.mark.parametrize(
    "wrong",
    [
        {"instances": 0},
        {"instances": 2},
        {"placement": "random", "instances": 2, "prefill_instances": 2},
        {"placement": "random", "instances": 3, "prefill_instances": 2, "elastic_instances": 1},
        {"fabric_gb_per_s": 0.0},
    ],
)
def test_impossible_clusters_are_refused(wrong):
    with pytest.raises(ConfigError, match=list(wrong)[-1]):
        ClusterConfig(**wrong)
