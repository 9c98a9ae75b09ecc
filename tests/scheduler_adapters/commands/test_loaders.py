"""One meaning of a policy's name: every command and engine loads the same object."""

import numpy as np
import pytest

from scheduler_adapters.commands import demo
from scheduler_adapters.commands.advise.replay import Replay
from scheduler_adapters.commands.capacity import CapacityConfig
from scheduler_adapters.commands.compare import CompareConfig
from scheduler_adapters.commands.serve_vllm import ServeConfig
from scheduler_adapters.commands.serving.ray_application import RayServeConfig
from scheduler_adapters.commands.simulate import SimulateConfig
from scheduler_adapters.engines.vllm_v1.additional_config import configured_policy
from scheduler_adapters.policies.fair_shares import FairShares
from scheduler_adapters.policy import POLICIES, Policy, load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.workload.requests import make_requests

INSTANCE = Instance.preset("llama-3-8b@a100-80g")
SETTINGS = [
    *((name, {}) for name in POLICIES),
    ("pars", {"guard": "waiting"}),
    ("oracle", {"starve_after_s": 60}),
    ("pars", {"times": 3}),
    ("slai", {"order": "fcfs"}),
    ("pars", {"shares": {"paying": 3}}),
    ("pars", {"shares": "none"}),
]


def parts(policy):
    """Type, name, traits and settings of a policy, and of the policies inside it."""
    own = {key: parts(value) for key, value in vars(policy).items() if isinstance(value, Policy)}
    return type(policy), policy.name, policy.traits, policy.rule, vars(policy) | own


def loaded(name, settings, clients):
    """The policy from every loader of a workload with these clients, and those of servers."""
    requests = make_requests(
        prompt_tokens=[4] * 4, output_tokens=[2] * 4, client=np.resize(clients, 4)
    )
    swept = {"policies": [name], "settings": {name: settings} if settings else {}}
    simulated = SimulateConfig(policy=name, settings=settings).policy_maker(requests.clients)
    found = {
        "simulate": simulated(),
        "compare": CompareConfig(**swept).policy_maker(name, requests)(),
        "capacity": CapacityConfig(**swept).policy_maker(name, requests)(),
    }
    if not settings:
        replay = Replay(requests=requests, instance=INSTANCE, instances=1, seed=0)
        found["advise"] = replay.policy_maker(name)()
    served = ServeConfig(model="m", policy=name, settings=settings)
    ray = RayServeConfig(model="m", policy=name, policy_settings=settings, think_end=7)
    engine = {
        "serve-vllm": configured_policy(served.additional_config),
        "serve-ray": configured_policy(ray.own_engine_arguments["additional_config"]),
    }
    return found, engine


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_every_loader_gives_the_same_policy(name, settings):
    alone, _ = loaded(name, settings, ["a"])
    several, engine = loaded(name, settings, ["a", "b"])
    ray = engine.pop("serve-ray")
    expected = parts(engine["serve-vllm"])
    assert [parts(policy) for policy in several.values()] == [expected] * len(several)
    if "shares" not in settings:
        inner = load_policy(name, **settings)
        shared = inner if name == "virtual-token-counter" else FairShares(inner)
        assert parts(shared) == expected
        assert {*map(str, map(parts, (*alone.values(), ray)))} == {str(parts(inner))}


def test_the_demo_loads_what_a_server_loads():
    for scheduler in (*demo.SCHEDULERS, demo.SMALL):
        name = scheduler.partition(",")[0]
        assert parts(demo.policy_of(scheduler)) == parts(load_policy(name))
