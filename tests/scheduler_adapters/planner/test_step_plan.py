"""A step while it is planned."""

from __future__ import annotations

from scheduler_adapters.planner.step_budget import StepBudget
from scheduler_adapters.planner.step_plan import Plan, Step
from scheduler_adapters.views import StepRule


def test_tokens_of_padded_prefills_cost_more_than_they_are() -> None:
    budget = StepBudget(StepRule(padded_tokens=True), max_tokens=100, max_num_seqs=4)
    step: Step[str] = Step(budget, 5, set())
    step.add_prefill(10)
    step.add_prefill(30)
    assert step.prefill_tokens == 40
    assert budget.tokens == 100 - 2 * 30


def test_a_plan_leaves_nobody_out_unless_it_says_so() -> None:
    plan: Plan[str] = Plan(num_tokens=3, newcomers=["a"])
    assert (list(plan.left_out), plan.last, plan.chunk) == ([], None, None)
