"""The policy interface: asking, refusing, loading by name."""

from math import inf, nan
from typing import Any

import pytest

from lengthwise.errors import ConfigError, InvalidDecision
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import (
    Policy,
    PolicyWrapper,
    Traits,
    ask_rank,
    ask_rule,
    describe,
    flaw_of,
    load_policy,
)
from scheduler_adapters.views import Capability, LoadView, Rank, RequestView, StepRule

VIEW = RequestView("r7", 0, 0.0, 10)
BY_ARRIVAL = Rank()
NO_LIMITS = StepRule()


class Answering(Policy):
    """Gives the answers that it was made with."""

    def __init__(self, rank: Any = BY_ARRIVAL, rule: Any = NO_LIMITS) -> None:
        self.answers = rank, rule

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if isinstance(self.answers[0], Exception):
            raise self.answers[0]
        return self.answers[0]  # type: ignore[no-any-return]

    def step_rule(self, load: LoadView) -> StepRule:
        if isinstance(self.answers[1], Exception):
            raise self.answers[1]
        return self.answers[1]  # type: ignore[no-any-return]


GOOD = [
    Rank(),
    Rank((1, 2.5, inf)),
    Rank((-inf,), evict_key=None),
    Rank((0.0,), valid_tokens=1, then=Rank((1.0,), valid_until_s=3.0)),
]


@pytest.mark.parametrize("rank", GOOD)
def test_a_rank_in_order_is_given_as_it_is(rank):
    assert ask_rank(Answering(rank), VIEW, LoadView()) is rank
    assert flaw_of(rank) == ""


BAD = [
    (Rank((nan,)), "no NaN"),
    (Rank((None,)), "without a score"),
    (Rank(("a",)), "'a'"),
    (Rank((0.0,), evict_key=(nan,)), "evict_key holds nan"),
    (Rank([1.0]), "key is"),
    (Rank(5), "key is 5; make it a tuple"),
    (Rank((1, "long")), "holds 'long'; use numbers"),
    (Rank(evict_key=((1, 2),)), "evict_key holds (1, 2)"),
    (Rank((0.0,), valid_tokens=0), "valid_tokens is 0; use 1 or more"),
    (Rank((0.0,), valid_tokens=nan), "valid_tokens"),
    (Rank((0.0,), then=Rank((1.0,), then=Rank((nan,)))), "no NaN"),
    (Rank((0.0,), then=Rank((1.0,), valid_tokens=0)), "valid_tokens is 0"),
    (None, "returned None; return a Rank"),
    (RuntimeError("no idea"), "RuntimeError: no idea; correct its rank"),
]


@pytest.mark.parametrize(("rank", "says"), BAD)
def test_a_rank_out_of_order_is_refused_with_its_request(rank, says):
    with pytest.raises(InvalidDecision, match="r7") as caught:
        ask_rank(Answering(rank), VIEW, LoadView())
    assert says in str(caught.value)


@pytest.mark.parametrize("field", ["lane", "valid_until_s"])
def test_every_number_of_a_rank_is_looked_at(field):
    assert field in flaw_of(Rank()._replace(**{field: nan}))
    assert field in flaw_of(Rank()._replace(**{field: None}))


def test_a_rule_is_given_or_refused_with_its_step():
    rule = StepRule(max_decodes=3)
    assert ask_rule(Answering(rule=rule), LoadView()) is rule
    for wrong in (None, KeyError("x")):
        with pytest.raises(InvalidDecision, match="step 5"):
            ask_rule(Answering(rule=wrong), LoadView(step=5))


def test_names_paths_and_settings_that_are_wrong_are_refused():
    with pytest.raises(ConfigError, match="no policy named 'fifo'; use one of fcfs"):
        load_policy("fifo")
    for path in ("no_such_module:Policy", "json:dumps", "scheduler_adapters.policies.fcfs:Nothing"):
        with pytest.raises(ConfigError, match="cannot be made"):
            load_policy(path)
    with pytest.raises(ConfigError, match="speed"):
        load_policy("fcfs", speed=3)
    with pytest.raises(ConfigError, match="must be a Policy"):
        load_policy("collections:OrderedDict")


def test_a_policy_of_ones_own_is_described_by_its_path():
    assert describe(Answering()) == f"'Answering' ({__name__}:Answering)"


@pytest.mark.parametrize("trait", ["requires", "sees_thinking", "is_static"])
def test_a_trait_set_beside_the_traits_is_refused(trait):
    with pytest.raises(ConfigError, match=rf"traits = Traits\({trait}=...\)"):
        type("Mine", (FCFS,), {trait: True})


def test_a_wrapper_has_the_name_traits_and_rule_of_what_it_wraps():
    class Plain(PolicyWrapper):
        def rank(self, request: RequestView, load: LoadView) -> Rank:
            return self.policy.rank(request, load)

    inner = Answering(rule=StepRule(chunk=4))
    inner.traits = Traits(requires=frozenset({Capability.EVICT}))
    wrapper = Plain(inner, suffix="+x")
    assert (wrapper.name, wrapper.traits) == ("Answering+x", inner.traits)
    assert wrapper.step_rule(LoadView()) == StepRule(chunk=4)
