"""Filling by hand: what goes into a step under each limit of a rule."""

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
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


def test_the_first_request_that_does_not_fit_ends_admission():
    # 20 tokens take 2 blocks, 40 take 3: the third would fit beside the first, and waits.
    first = steps(StepRule(), prompts=(20, 40, 5), kv_blocks=4, watermark_fraction=0.0)[0]
    assert first == (0, [20])


def test_a_rule_that_would_place_nothing_is_set_aside():
    assert steps(StepRule(max_prefills=0))[0] == (0, [20, 10, 5])


def test_rules_may_alternate():
    assert steps(StepRule(max_prefills=1), StepRule(chunk=4))[:2] == [(0, [20]), (1, [4, 4])]
