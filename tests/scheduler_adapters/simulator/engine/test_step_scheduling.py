"""Filling by hand: what goes into a step under each limit of a rule."""

import pytest

from lengthwise.errors import InvalidDecision
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency, LatencyModel
from scheduler_adapters.views import LoadView, Rank, RequestView, StepRule
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import serve


class Sizes(LatencyModel):
    """Notes (decodes, chunks) of each step."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, list[int]]] = []

    def step_s(self, num_decodes, decode_context, prefills):
        self.steps.append((num_decodes, [chunk for _, chunk in prefills]))
        return 1.0


class Ruled(Policy):
    name = "ruled"

    def __init__(self, *rules: StepRule) -> None:
        self.rules = rules
        self.num_asked = 0

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank()

    def step_rule(self, load: LoadView) -> StepRule:
        self.num_asked += 1
        return self.rules[load.step % len(self.rules)]


def steps(*rules: StepRule, prompts=(20, 10, 5), outputs=(3, 3, 3), **limits):
    sizes = Sizes()
    limits = {"kv_blocks": 50, "max_tokens": 100} | limits
    policy = Ruled(*rules)
    requests = make_requests(prompt_tokens=prompts, output_tokens=outputs)
    serve(Engine(policy, Instance(latency=sizes, **limits)), requests)
    assert policy.num_asked == len(sizes.steps)  # exactly once per step
    return sizes.steps


@pytest.mark.parametrize(
    ("rule", "first_steps"),
    [
        (StepRule(), [(0, [20, 10, 5]), (3, []), (3, [])]),
        (StepRule(max_tokens=24), [(0, [20, 4]), (1, [6, 5]), (3, [])]),
        (StepRule(chunk=8), [(0, [8, 8, 5]), (1, [8, 2]), (2, [4]), (2, [])]),
        (StepRule(max_prefills=1), [(0, [20]), (1, [10]), (2, [5])]),
        (StepRule(max_admissions=2), [(0, [20, 10]), (2, [5])]),
        (StepRule(max_resident=1), [(0, [20]), (1, []), (1, []), (0, [10])]),
        (StepRule(max_decodes=1), [(0, [20, 10, 5]), (1, []), (1, []), (1, [])]),
        (StepRule(mixed=False, max_admissions=1), [(0, [20]), (1, []), (1, []), (0, [10])]),
        (StepRule(whole_prompts=True, max_tokens=12), [(0, [20]), (1, [10]), (2, [5])]),
        (
            StepRule(whole_prompts=True, padded_tokens=True, max_tokens=40),
            [(0, [20, 10]), (2, [5])],
        ),
    ],
)
def test_a_step_holds_what_the_rule_allows(rule, first_steps):
    assert steps(rule)[: len(first_steps)] == first_steps


def test_the_instances_own_limits_hold_without_a_rule():
    assert steps(StepRule(), max_tokens=16)[:2] == [(0, [16]), (0, [4, 10, 2])]
    assert steps(StepRule(), max_num_seqs=2)[0] == (0, [20, 10])


def test_the_first_request_that_does_not_fit_ends_admission():
    # 20 tokens take 2 blocks, 40 take 3: the third would fit beside the first, and waits.
    first = steps(StepRule(), prompts=(20, 40, 5), kv_blocks=4, watermark_fraction=0.0)[0]
    assert first == (0, [20])


def test_a_rule_that_would_place_nothing_is_set_aside():
    assert steps(StepRule(max_prefills=0))[0] == (0, [20, 10, 5])


def test_rules_may_alternate():
    assert steps(StepRule(max_prefills=1), StepRule(chunk=4))[:2] == [(0, [20]), (1, [4, 4])]


class Wrong(Ruled):
    def step_rule(self, load: LoadView):
        if not self.rules:
            raise KeyError("mode")
        return {"max_tokens": 3}


@pytest.mark.parametrize(
    ("policy", "message"),
    [(Wrong(), "KeyError.*correct its step_rule"), (Wrong(StepRule()), "return a StepRule")],
)
def test_a_policy_without_a_usable_rule_is_named(policy, message):
    requests = make_requests(prompt_tokens=[1], output_tokens=[1])
    instance = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=9)
    with pytest.raises(InvalidDecision, match=f"'ruled'.*{message}"):
        serve(Engine(policy, instance), requests)
