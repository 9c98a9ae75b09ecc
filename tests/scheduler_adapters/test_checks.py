"""The conformance suite passes every policy of ours and catches policies that break a law."""

from collections.abc import Callable
from fractions import Fraction
from itertools import count
from math import inf
from typing import Any

import numpy as np
import pytest

from lengthwise.errors import ConfigError, InvalidDecision
from scheduler_adapters.checks import LAWS, check_placement, check_policy
from scheduler_adapters.placement import PLACEMENTS, Move, Placement
from scheduler_adapters.policies.fair_shares import ClassPriority
from scheduler_adapters.policies.shortest_predicted import StarvationGuard
from scheduler_adapters.policy import POLICIES, Policy, load_policy
from scheduler_adapters.views import LoadView, Rank, RequestView, StepRule


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_ours_keeps_every_law(name):
    assert len(check_policy(lambda: load_policy(name))) == 5 * len(LAWS)


WRAPPERS = {"guard": lambda policy: StarvationGuard(policy, after_s=2.0), "class": ClassPriority}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"pointwise", "listwise", "oracle"}))
def test_every_policy_keeps_every_law_inside_a_wrapper(name, wrapper):
    assert check_policy(lambda: WRAPPERS[wrapper](load_policy(name)))


@pytest.mark.parametrize("name", ["fcfs", "round-robin", "pascal"])
def test_so_does_every_policy_that_offloads(name):
    assert check_policy(lambda: load_policy(name, offload=True))


class ShortestPrompt(Policy):
    name = "shortest-prompt"

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank((request.prompt_tokens,))


class Nameless(Policy):
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank()


def test_a_policy_without_a_name_has_that_of_its_class():
    assert check_policy(Nameless)
    assert Nameless().name == "Nameless"
    assert StarvationGuard(Nameless()).name == "Nameless+guard"


@pytest.mark.parametrize("name", ["fcfs", f"{__name__}:Nameless"])
def test_a_policy_is_checked_by_name_and_import_path(name):
    assert check_policy(name) == check_policy(Nameless)


@pytest.mark.parametrize("given", [Nameless(), None, lambda: "fcfs", "no_such_module:Policy"])
def test_what_makes_no_policies_is_refused(given):
    with pytest.raises(ConfigError):
        check_policy(given)


class RanksBy(ShortestPrompt):
    def __init__(self, make_rank: Callable[[RequestView, LoadView], Any]) -> None:
        self.make_rank = make_rank

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return self.make_rank(request, load)  # type: ignore[no-any-return]


ASKED = count()


@pytest.mark.parametrize("number", [np.float32(3), np.int64(3), Fraction(1, 3), True, -inf])
def test_any_real_number_is_a_key(number):
    assert check_policy(lambda: RanksBy(lambda view, _: Rank((number, view.prompt_tokens))))


@pytest.mark.parametrize(
    ("make_rank", "complaint"),
    [
        (lambda view, load: Rank((float("nan"),)), "no NaN"),
        (lambda view, load: Rank((view.score + 1,)), "TypeError"),
        (lambda view, load: setattr(view, "prompt_tokens", 9) or Rank(), "read-only"),
        (lambda view, load: Rank(valid_until_s=load.now_s), "ended"),
        (lambda view, load: Rank((next(ASKED) % 7,)), "no randomness"),
    ],
)
def test_a_policy_that_breaks_a_law_is_named(make_rank, complaint):
    name = rf"'shortest-prompt' \({__name__}:RanksBy\)"
    with pytest.raises(InvalidDecision, match=f"{name}.*{complaint}"):
        check_policy(lambda: RanksBy(make_rank))


class SpendsTooMuch(ShortestPrompt):
    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(max_tokens=64 - 30 * load.num_decoding)


def test_a_policy_with_a_negative_budget_is_named_with_the_step():
    expected = r"'shortest-prompt'.* step \d+: ConfigError: max_tokens is -\d+;.*its step_rule"
    with pytest.raises(InvalidDecision, match=expected):
        check_policy(SpendsTooMuch)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_of_ours_keeps_every_law(name):
    has_pools = name in ("distserve", "memory-aware-pools", "phasor", "splitwise")
    assert len(check_placement(name)) == 5 * 5 * (2 + has_pools)


class Careless(Placement):
    """Breaks a law of placements, or none."""

    name = "careless"
    runs = 0

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        Careless.runs += 1
        self.run = Careless.runs

    def place(self, request, instances):
        if self.fault == "writes":
            instances[-1].used_blocks += 1
        if self.fault == "raises":
            raise KeyError("lost")
        if self.fault == "dead":
            return request.number % 3
        if self.fault == "differs":
            return instances[self.run % len(instances)].instance_id
        return len(instances) if self.fault == "beyond" else instances[-1].instance_id

    def at_phase_change(self, request, instance, instances):
        if self.fault == "renames":
            request.score = 1.5
        return instances[0].instance_id

    def tick(self, now_s, instances):
        if self.fault == "ticks":
            instances[-1].role = "decode"
        moves = [Move(request_id="nobody", to=1)] if self.fault == "moves" else ()
        return ["nothing"] if self.fault == "answers" else moves


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("writes", "'views_are_only_read' on the workload 'burst': deciding on '0' changed one"),
        ("renames", "'views_are_only_read' on the workload"),
        ("differs", "breaks the law 'equal_runs_are_equal' on the workload 'burst'"),
        ("beyond", "'decisions_can_be_carried_out' .*'burst': .* to instance 3; name one of the"),
        ("ticks", "the tick at 0.0 s changed one"),
        ("dead", "'burst, with instances that die': .* to instance 2; name one of the views"),
        ("raises", r"failed in place\(\), at 0.0 s: KeyError: 'lost'; correct it"),
        ("moves", "'nobody', to=1.*it has not arrived; move a request that was placed"),
        ("answers", "answered a tick with 'nothing'; use Move and SetRole"),
    ],
)
def test_a_placement_that_breaks_a_law_is_told_which(fault, complaint):
    assert check_placement(Careless)
    with pytest.raises(InvalidDecision, match=complaint):
        check_placement(lambda: Careless(fault))


def test_what_makes_no_placement_is_refused():
    with pytest.raises(ConfigError, match="no placement named 'nearest'"):
        check_placement("nearest")
    with pytest.raises(ConfigError, match="it must be a Placement"):
        check_placement(ShortestPrompt)  # type: ignore[arg-type]
