"""Settings of a cluster: roles of its instances, its network, and what cannot be."""

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
