"""Settings and columns that are refused, one per line, and the text of the error."""

from functools import partial
from itertools import product
from math import inf, nan

import pytest

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.commands.profile_prefill import ProfileConfig
from scheduler_adapters.engines.vllm_v1.in_process import OfflineConfig
from scheduler_adapters.placement import load_placement
from scheduler_adapters.placements.distserve import DistServe
from scheduler_adapters.placements.freeness import PrefillCost
from scheduler_adapters.placements.pascal import PascalPlacement
from scheduler_adapters.placements.phasor import Phasor
from scheduler_adapters.placements.splitwise import Splitwise
from scheduler_adapters.policies.fair_shares import FairShares
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import StarvationGuard
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.cluster.cluster_config import ClusterConfig
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.instance_config import InstanceConfig
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.latency.presets import preset
from scheduler_adapters.simulator.links import Fabric, HostLink
from scheduler_adapters.timeline.live_log import TimelineLog
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.mixes import draw_lengths
from scheduler_adapters.workload.requests import make_requests
from scheduler_adapters.workload.score_sources import synthetic_scores
from scheduler_adapters.workload.workload import WorkloadConfig

engine = partial(Instance, latency=AffineLatency(base_s=1.0), kv_blocks=10)
cluster = partial(ClusterConfig, placement="random")
COST = PrefillCost(alpha=1.0, beta=10.0, peak_flop_per_s=1000.0, model="m", device="d")
phasor = partial(Phasor, **{"cost": COST, "ttft_slo_s": 1.0})
poisson = partial(arrivals_s, 10, seed=0)
columns = partial(make_requests, prompt_tokens=[1, 1], output_tokens=[4, 4])
A100 = "llama-3-8b@a100-80g"

CALLS = [
    (engine, {"kv_blocks": 0}, "kv_blocks"),
    (engine, {"max_num_seqs": 0}, "max_num_seqs"),
    (engine, {"max_tokens": 0}, "max_tokens"),
    (engine, {"block_tokens": 0}, "block_tokens"),
    (engine, {"watermark_fraction": 1.0}, "watermark_fraction"),
    (engine, {"decode_headroom_blocks": 2}, "decode_headroom_blocks"),
    (preset, {"name": "llama-3-8b"}, r"llama-3-8b.*a100-80g"),
    (preset, {"name": "llama-3-8b@tpu"}, r"llama-3-8b.*a100-80g"),
    (preset, {"name": "gpt-5@a100-80g"}, r"llama-3-8b.*a100-80g"),
    (preset, {"name": "gpt-5@a100-80g:affine=steps.csv"}, "affine=FILE"),
    (preset, {"name": "deepseek-r1-distill-qwen-32b@a100-40g"}, "no room"),
    (AffineLatency, {"base_s": 0.0}, "must take time"),
    (AffineLatency, {"base_s": -1.0}, "base_s"),
    (AffineLatency, {"base_s": nan}, "base_s"),
    *product(
        (partial(HostLink, kv_bytes_per_token=1), partial(Fabric, kv_bytes_per_token=1)),
        ({"kv_bytes_per_token": 0}, {"bytes_per_s": 0.0}, {"bytes_per_s": nan}),
        ("bytes_per",),
    ),
    (partial(HostLink, kv_bytes_per_token=1), {"latency_s": -1.0}, "latency_s"),
    (InstanceConfig, {"host_gb_per_s": 0.0}, "use a number above 0"),
    (InstanceConfig, {"host_gb_per_s": inf}, "use a number above 0"),
    (InstanceConfig, {"host_gb_per_s": 5.0, "engine": "vllm"}, "only the plain engine has host"),
    (ClusterConfig, {"instances": 0}, "instances"),
    (ClusterConfig, {"instances": 2}, "instances"),
    (cluster, {"instances": 2, "prefill_instances": 2}, "prefill_instances"),
    (cluster, {"instances": 3, "prefill_instances": 2, "elastic_instances": 1}, "elastic_inst"),
    (cluster, {"fabric_gb_per_s": 0.0}, "fabric_gb_per_s"),
    (Outage, {"instance": -1, "at_s": 1.0}, "instance is -1"),
    (Outage, {"instance": 0, "at_s": -1.0}, "at_s is -1.0; use a number"),
    (Outage, {"instance": 0, "at_s": 2.0, "until_s": 2.0}, "until_s is 2.0; use a time after 2.0"),
    (TelemetryAge, {"period_s": -1.0}, "period_s is -1.0; use a number, 0 or more"),
    (TelemetryAge, {"max_age_s": -1.0}, "max_age_s is -1.0; use a number, 0 or more"),
    (load_policy, {"name": "srpt", "preempt_share": 2}, "preempt_share"),
    (load_policy, {"name": "srpt", "every_tokens": 0}, "every_tokens"),
    (load_policy, {"name": "slai", "order": "lifo"}, "order is 'lifo'"),
    (load_policy, {"name": "sarathi", "order": "lifo"}, "order is 'lifo'"),
    (load_policy, {"name": "pars", "guard": "waits"}, "guard"),
    (load_policy, {"name": "pars", "guard": "waiting", "times": 2}, "limits|times"),
    (load_policy, {"name": "pars", "guard": "none", "times": 2}, "limits|times"),
    (load_policy, {"name": "pars", "guard": "overtaking", "times": -1, "at_least": 2}, "times"),
    (StarvationGuard, {"policy": FCFS(), "after_s": -1}, "after_s is -1"),
    (FairShares, {"policy": FCFS(), "weights": {"paying": 0.5}}, r"^weight of paying is 0\.5; us"),
    (load_placement, {"name": "nearest"}, "no placement named 'nearest'; use one of distserve"),
    (load_placement, {"name": "least-kv", "seed": 1}, "placement 'least-kv' cannot be made with"),
    (load_placement, {"name": "json:loads", "s": "{}"}, "is dict; it must be a Placement"),
    (DistServe, {"max_waiting_fraction": 0}, "max_waiting_fraction is 0"),
    (Splitwise, {"max_pending_tokens": 0}, "max_pending_tokens"),
    (PascalPlacement, {"migration": "sometimes"}, "migration is 'sometimes'; use one of adaptive"),
    (PascalPlacement, {"quantum_tokens": 0}, "quantum_tokens"),
    (PascalPlacement, {"reserve_tokens": -1}, "reserve_tokens"),
    (PascalPlacement, {"pace_s": 0.0}, "pace_s"),
    (phasor, {"ttft_slo_s": 0}, "ttft_slo_s is 0; use a number above 0"),
    (phasor, {"theta_flow": 1.5}, "theta_flow is 1.5"),
    (phasor, {"theta_frag": 1}, "theta_frag is 1"),
    (phasor, {"cool_down_ticks": 0}, "cool_down_ticks is 0"),
    (phasor, {"idle": "off"}, "idle is 'off'; use one of standby, mixed"),
    (phasor, {"tick_s": 0.0}, "tick_s is 0"),
    *((poisson, {"rate_per_s": rate}, "rate_per_s") for rate in (0, -1, nan, inf)),
    (draw_lengths, {"name": "poems", "count": 5, "seed": 0}, "one of chat, alpaca-eval"),
    (synthetic_scores, {"lengths": [1, 2], "tau_b": 1.5}, r"tau_b is 1\.5"),
    (WorkloadConfig, {"num_requests": 0}, "num_requests is 0"),
    (WorkloadConfig, {"seed": -1}, "seed is -1"),
    (WorkloadConfig, {"scores": "best"}, "scores is 'best'"),
    (WorkloadConfig, {"scores": "bundle:x"}, "there is no trace"),
    (WorkloadConfig, {"classes": {"a": {"share": 0.9}}}, "sum to 1"),
    (TimelineLog, {"path": "/none/t.jsonl", "start_s": 0.0}, "choose another place"),
    (ProfileConfig, {"prompt_tokens": []}, "prompt_tokens"),
    (ProfileConfig, {"repeats": 0}, "repeats"),
    (OfflineConfig, {"max_num_seqs": 0}, "max_num_seqs is 0"),
    (OfflineConfig, {"kv_cache_mib": 0}, "kv_cache_mib is 0"),
    (OfflineConfig, {"max_num_seqs": 9, "max_num_batched_tokens": 8}, "a token for each running"),
]  # fmt: skip
COLUMNS = [
    *(({"output_tokens": [3, bad]}, "output_tokens is .*whole number", 1)
      for bad in (-1, 0, nan, 1.5, inf)),
    *(({"arrival_s": [0.0, bad]}, "arrival_s", 1) for bad in (-0.5, nan, inf)),
    *(({"tbt_s": [nan, bad]}, "tbt_s is", 1) for bad in (0.0, -1.0, inf)),
    ({"prompt_tokens": [1, 1, 1]}, "prompt_tokens has shape", None),
    ({"prompt_tokens": [], "output_tokens": []}, "no requests", None),
    ({"prompt_tokens": ["many", 1]}, "prompt_tokens holds no numbers", None),
    ({"reasoning_tokens": [5, 0]}, "reasoning_tokens is 5", 0),
    ({"cached_tokens": [0, 2]}, "cached_tokens is 2; it must be no more than prompt_tokens", 1),
]  # fmt: skip


@pytest.mark.parametrize(("call", "wrong", "message"), CALLS)
def test_a_wrong_setting_is_named_with_its_right_values(call, wrong, message):
    with pytest.raises(ConfigError, match=message):
        call(**wrong)


@pytest.mark.parametrize(("wrong", "message", "row"), COLUMNS)
def test_a_wrong_column_is_named_with_its_row(wrong, message, row):
    with pytest.raises(DataError, match=message) as caught:
        columns(**wrong)
    assert caught.value.row == row
