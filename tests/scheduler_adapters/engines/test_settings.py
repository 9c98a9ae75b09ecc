"""How an engine is told its policy, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_adapters.engines.settings import make_policy, require_capabilities
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.views import Capability, LoadView, StepRule
from scoring_service.errors import ConfigError, UnsupportedByEngine


def test_the_settings_name_the_policy_and_what_it_takes() -> None:
    policy = make_policy({"lengthwise": {"policy": "pars", "starve_after_s": 7}, "other": 1})
    assert policy.after_s == 7  # type: ignore[attr-defined]
    assert make_policy({}, "fcfs").name == "fcfs"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "names policy None"),
        ({"policy": "fcsf"}, "no policy named 'fcsf'"),
        ({"policy": "pars", "starve": 3}, "cannot be made"),
        ("pars", "use a JSON object"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_policy({"lengthwise": settings})


def test_a_policy_beyond_the_adapter_is_refused() -> None:
    class Offloading(FCFS):
        requires = frozenset({Capability.OFFLOAD})

    with pytest.raises(UnsupportedByEngine, match="OFFLOAD"):
        require_capabilities(Offloading(), frozenset({Capability.EVICT}), "test")


def test_a_policy_that_shapes_steps_is_refused() -> None:
    class Small(FCFS):
        def step_rule(self, load: LoadView) -> StepRule:
            return StepRule(max_tokens=8)

    with pytest.raises(UnsupportedByEngine, match="shapes steps"):
        require_capabilities(Small(), frozenset(), "test")
