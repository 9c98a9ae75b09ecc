"""Residents of an engine in plain Python: their phases, their ranks, and their blocks."""

import pytest

from scheduler_adapters.policies.fair_shares import ClassPriority
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, StepRule
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.planner.fake_engine import FakeEngine


class Noting(Policy):
    """Notes each question it is asked; a rank is valid for `tokens` tokens or until `until_s`."""

    name = "noting"

    def __init__(self, *, tokens: float = float("inf"), until_s: float = float("inf")) -> None:
        self.tokens, self.until_s = tokens, until_s
        self.asked: list[tuple[str, int]] = []

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        self.asked.append((request.phase.name, request.generated_tokens))
        ends = self.until_s if load.now_s < self.until_s else float("inf")
        return Rank(valid_tokens=self.tokens, valid_until_s=ends)


class Thinking(Noting):
    """Ranks by phase."""

    traits = Traits(sees_thinking=True)


def served(policy: Policy, *, prompt: int = 20, output: int = 7, thinks: int = 0) -> FakeEngine:
    engine = FakeEngine(policy, seats=2, budget=8, blocks=9, block_tokens=16)
    requests = make_requests(
        prompt_tokens=[prompt], output_tokens=[output], reasoning_tokens=[thinks]
    )
    engine.serve(requests)
    return engine


# Three steps for the prompt and one decode end before .035 s, the next decode after.
@pytest.mark.parametrize(
    ("ends", "tokens"), [({}, [1]), ({"tokens": 3}, [1, 4]), ({"until_s": 0.035}, [1, 3])]
)
def test_a_rank_is_requested_at_each_event_and_at_its_end(ends, tokens):
    policy = Noting(**ends)
    served(policy)
    answering = [("ANSWERING", count) for count in tokens]
    assert policy.asked == [("WAITING", 0), ("PREFILL", 0), *answering]


def test_the_end_of_thinking_is_ranked_in_the_next_phase():
    policy = Thinking()
    served(policy, output=9, thinks=4)
    assert policy.asked[2:] == [("REASONING", 1), ("ANSWERING", 4)]


def test_finished_residents_leave_nothing():
    engine = served(Thinking(tokens=1), output=9, thinks=4)
    residents = engine.planner.residents
    assert len(residents) == len(list(residents)) == 0
    assert not residents._thinking
    assert engine.tracker.load.num_started == 1


def test_blocks_promised_to_a_prefill_count_as_held():
    engine = FakeEngine(FCFS(), seats=2, budget=8, blocks=9, block_tokens=16)
    engine._submit(make_requests(prompt_tokens=[40], output_tokens=[2]), 0)
    engine._step()
    residents, (item,) = engine.planner.residents, engine.running
    assert item.lengthwise.view.phase is Phase.PREFILL
    assert residents.left_to_prefill(item) == 32
    assert residents.freed_blocks([item]) == 3
    assert (engine.free_blocks(), residents.free_blocks()) == (8, 6)
    residents.count()
    load = engine.tracker.load
    assert (load.num_waiting, load.num_prefilling, load.num_decoding) == (0, 1, 0)
    assert (load.used_blocks, load.total_blocks) == (3, 9)


class Momentary(Policy):
    """Ranks each decode for one token, and all of them by one rank; one decode per step."""

    name = "momentary"

    def __init__(self) -> None:
        self.decodes_asked: list[tuple[int, int]] = []

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if request.phase <= Phase.PREFILL:
            return Rank()
        self.decodes_asked.append((load.step, request.number))
        return Rank((float(load.step),), valid_tokens=1, group="all")

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(max_decodes=3)


@pytest.mark.parametrize(("classes", "num_asked"), [("aaaa", 1), ("abab", 2)])
@pytest.mark.parametrize("wraps", [False, True])
def test_a_momentary_rank_is_asked_for_once_per_group(classes, num_asked, wraps):
    inner = Momentary()
    policy = ClassPriority(inner, classes=["a", "b"]) if wraps else inner
    engine = FakeEngine(policy, seats=4, budget=64, blocks=9, block_tokens=16)
    requests = make_requests(prompt_tokens=[4] * 4, output_tokens=[9] * 4, user_class=list(classes))
    for row in range(4):
        engine._submit(requests, row)
    engine._step()
    assert len(inner.decodes_asked) == 4  # at the end of their prefills, one by one
    engine._step()  # in which one is left out, whose rank is still good
    before = len(inner.decodes_asked)
    engine._step()
    assert len(inner.decodes_asked) - before == (num_asked if wraps else 1)
