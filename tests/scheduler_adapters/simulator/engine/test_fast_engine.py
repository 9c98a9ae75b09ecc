"""The fast engine against the one that walks every request: equal bit for bit, any policy."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from scheduler_adapters.policy import POLICIES, Policy, load_policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.views import StepRule
from scheduler_adapters.workload.requests import Requests, make_requests
from tests.scheduler_adapters.simulator.any_policy import (
    LATENCY,
    AnyPolicy,
    EveryToken,
    assert_equal,
    hosts,
    instances,
    policies,
    serve,
    workloads,
)
from tests.scheduler_adapters.simulator.reference import ReferenceEngine


def check(requests: Requests, policy: Policy, instance: Instance) -> None:
    walked = ReferenceEngine(policy, instance).run(requests)
    assert_equal(serve(Engine(policy, instance), requests), walked)
    assert_equal(serve(Engine(policy, instance, observers=[EveryToken()]), requests), walked)


@settings(max_examples=150, deadline=None)
@given(workloads(), policies, instances)
def test_any_policy_runs_as_if_every_request_were_walked(requests, policy, instance):
    check(requests, policy, instance)


@settings(max_examples=150, deadline=None)
@given(workloads(), policies, instances, hosts)
def test_so_does_any_policy_that_offloads(requests, policy, instance, host):
    shown = tuple(replace(rule, offload=True) for rule in policy.rules or (StepRule(),))
    check(requests, replace(policy, rules=shown), replace(instance, host=host))


@settings(max_examples=250, deadline=None)
@given(workloads(), policies, instances, hosts, st.integers(0, 2))
def test_so_does_any_policy_that_displaces(requests, policy, instance, host, first_to_host):
    # What waits must not displace what it would itself be displaced by: keys that residency does
    # not change.
    steady = replace(policy, evict="key", lanes="one", group="none", key="quantum")
    shown = tuple(
        replace(rule, displace=True, offload=number >= first_to_host)
        for number, rule in enumerate(policy.rules or (StepRule(),))
    )
    check(requests, replace(steady, rules=shown), replace(instance, host=host))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=15, deadline=None)
@given(requests=workloads(), instance=instances)
def test_so_does_every_policy_of_ours(name, requests, instance):
    check(requests, load_policy(name), instance)


def test_a_step_that_admitted_someone_is_not_repeated():
    # Decodes have the step to themselves, so the admitted ones wait for it; one more each step.
    rule = StepRule(max_admissions=1, mixed=False, displace=True)
    requests = make_requests(
        prompt_tokens=[91, 50, 61], output_tokens=[18, 13, 11], scores=[7, 0, 4]
    )
    instance = Instance(latency=LATENCY, kv_blocks=14, max_num_seqs=3, watermark_fraction=0.0)
    check(requests, AnyPolicy(key="quantum", evict="key", rules=(rule,)), instance)
