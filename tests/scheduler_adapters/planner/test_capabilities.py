"""The refusal of policies beyond an engine, and the choice of those whose steps are planned."""

from typing import Any

import pytest

from lengthwise.errors import ConfigError, InvalidDecision, UnsupportedByEngine
from scheduler_adapters.planner.capabilities import (
    plans_steps,
    require_capabilities,
    require_think_end,
)
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import Traits
from scheduler_adapters.views import Capability, LoadView, StepRule


@pytest.mark.parametrize("capability", Capability)
def test_each_missing_capability_is_named_and_explained(capability):
    policy = FCFS()
    policy.traits = Traits(requires=frozenset({capability}))
    message = f"'fcfs' requires {capability.name} .{capability.value}., which it cannot do; use me"
    with pytest.raises(UnsupportedByEngine, match=message):
        require_capabilities(policy, frozenset(Capability) - {capability}, "it", remedy="use me")
    require_capabilities(policy, frozenset({capability}), "it")


def test_what_is_no_capability_is_always_refused():
    policy: Any = FCFS()
    policy.traits = Traits(requires=frozenset({"teleport"}))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedByEngine, match=r"'teleport' \(no capability"):
        require_capabilities(policy, frozenset(Capability), "it")


def test_a_policy_of_phases_needs_to_know_what_ends_thinking():
    with pytest.raises(ConfigError, match=r"'pascal' ranks by phase, .*; give think_end"):
        require_think_end(Pascal(), False, "give think_end")
    require_think_end(Pascal(), True, "give think_end")
    require_think_end(FCFS(), False, "give think_end")


class Small(FCFS):
    """Counts its steps, as a rule with a cycle would."""

    asked = 0

    def step_rule(self, load: LoadView) -> StepRule:
        self.asked += 1
        return StepRule(max_tokens=8)


def test_only_a_policy_that_shapes_steps_plans_them():
    small = Small()
    assert plans_steps(small)
    assert small.asked == 0
    assert not plans_steps(pars())
    evicting = FCFS()
    evicting.traits = Traits(requires=frozenset({Capability.EVICT}))
    assert plans_steps(evicting)


def test_a_policy_without_a_usable_rule_is_named_at_start():
    class Broken(FCFS):
        name = "broken"

        def step_rule(self, load: LoadView) -> Any:
            return {"max_tokens": 1 / load.total_blocks}

    with pytest.raises(InvalidDecision, match=r"returned \{'max_tokens': 1.0\}.*StepRule"):
        plans_steps(Broken())
