"""Every variant of every policy against the laws, and settings out of range."""

import re

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.checks import check_policy
from scheduler_adapters.policies.fair_shares import ClassPriority
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.prefill_first import RequestLevel
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import StarvationGuard, pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import load_policy

VARIANTS = {
    "sarathi spf": lambda: Sarathi(order="spf"),
    "slai fcfs fixed 10": lambda: SLAI(order="fcfs", offset=10),
    "slai spf fixed 10": lambda: SLAI(offset=10),
    "slai spf fixed 5": lambda: SLAI(offset=5),
    "slai spf dynamic": SLAI,
    "slai paying first": lambda: SLAI(paying_first=True),
    "rad small": lambda: RAD(max_started=7, tile=4, chunk=16),
    "rad twin small": lambda: RADTwin(max_started=7, tile=4, chunk=16),
    "round robin 10": lambda: RoundRobin(quantum_tokens=10),
    "request level pars": lambda: RequestLevel(inside="pars", starve_after_s=1.0),
    "pascal capped": lambda: Pascal(quantum_tokens=10, max_decodes=4),
    "pars with a tight limit": lambda: pars(guard="overtaking", times=0.5, at_least=3),
    "guard over class over pars": lambda: StarvationGuard(ClassPriority(pars()), after_s=1.0),
}


@pytest.mark.parametrize("make_policy", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_keeps_every_law(make_policy):
    assert check_policy(make_policy)


OUT_OF_RANGE = [
    *(("slai", {"default_tbt_s": wrong}) for wrong in (float("nan"), 0, -1e-9)),
    *(("slai", {"memory_limit": wrong}) for wrong in (-1e-9, 1.001)),
    *(("slai", {name: -1e-9}) for name in ("offset", "offset_below", "offset_above")),
    ("slai", {"offset_above": float("nan")}),
    ("slai", {"max_resident": 0}),
    ("vllm-prefill-first", {"max_tokens": 0}),
    ("sarathi", {"max_tokens": -1}),
    ("request-level", {"max_batch": -1}),
    ("rad-twin", {"tile": 1.5}),
    ("rad", {"chunk": "many"}),
    ("round-robin", {"quantum_tokens": None}),
]


@pytest.mark.parametrize(("name", "wrong"), OUT_OF_RANGE)
def test_a_setting_out_of_range_is_refused_by_its_name_and_value(name, wrong):
    ((setting, value),) = wrong.items()
    with pytest.raises(ConfigError, match=rf"^{setting} is {re.escape(repr(value))}; use "):
        load_policy(name, **wrong)
