"""How an engine is told its policy, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_adapters.planner.settings import (
    make_policy,
    plans_steps,
    require_capabilities,
    think_end,
)
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import Traits
from scheduler_adapters.views import Capability, LoadView, StepRule
from scoring_service.errors import ConfigError, InvalidDecision, UnsupportedByEngine


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
        traits = Traits(requires=frozenset({Capability.OFFLOAD}))

    with pytest.raises(UnsupportedByEngine, match="OFFLOAD"):
        require_capabilities(Offloading(), frozenset({Capability.EVICT}), "test")


class Small(FCFS):
    """Counts its steps, as a rule with a cycle would."""

    asked = 0

    def step_rule(self, load: LoadView) -> StepRule:
        self.asked += 1
        return StepRule(max_tokens=8)


def test_only_a_policy_that_shapes_steps_plans_them_and_probing_leaves_no_trace() -> None:
    small = Small()
    assert plans_steps(small)
    assert small.asked == 0
    assert not plans_steps(pars())


@pytest.mark.parametrize("ids", ["</think>", [1.5], [-1], 7])
def test_think_end_must_be_token_ids(ids: object) -> None:
    with pytest.raises(ConfigError, match="list of token ids"):
        think_end({"lengthwise": {"think_end": ids}})


def test_think_end_is_read_and_kept_from_the_policy() -> None:
    config = {"lengthwise": {"policy": "fcfs", "think_end": [7, 8]}}
    assert think_end(config) == (7, 8)
    assert make_policy(config).name == "fcfs"
    assert think_end({}) == ()


def test_a_policy_without_a_usable_rule_is_named_at_start() -> None:
    class Broken(FCFS):
        name = "broken"

        def step_rule(self, load: LoadView) -> Any:
            return {"max_tokens": 1 / load.total_blocks}

    with pytest.raises(InvalidDecision, match=r"returned \{'max_tokens': 1.0\}.*StepRule"):
        plans_steps(Broken())
