"""Shared by the tests of an engine's decisions: requests, a clock, the simulator's steps, dice."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scheduler_adapters.policies.fair_shares import ClassPriority, FairShares
from scheduler_adapters.policies.prefill_first import Orca, PrefillFirst, RequestLevel
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import StarvationGuard
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy, PolicyWrapper, Traits, load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.views import Capability, LoadView, Phase, Rank, RequestView, StepRule
from scheduler_adapters.workload.requests import Requests, make_requests
from tests.scheduler_adapters.simulator.prefix_cache import CachingReference, Shared
from tests.scheduler_adapters.simulator.reference import ReferenceEngine

LATENCY = AffineLatency(base_s=2**-7, per_token_s=2**-14)
WEIGHTS = {"paying": 3, "free": 2}
Steps = list[dict[int, int]]
"""Row of the request -> tokens, per step."""


@dataclass
class Clock:
    """Time that moves with the engine's steps, in seconds."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def step(self, tokens: int) -> None:
        self.now_s += LATENCY.base_s + tokens * LATENCY.per_token_s


def steps_of_simulator(
    policy: Policy,
    requests: Requests,
    *,
    seats: int,
    budget: int,
    blocks: int,
    block_tokens: int,
    watermark_fraction: float = 0.0,
    shared: Shared | None = None,
) -> Steps:
    """Steps of the reference engine, in an instance as large as the real one."""
    instance = Instance(
        latency=LATENCY,
        kv_blocks=blocks,
        max_num_seqs=seats,
        max_tokens=budget,
        block_tokens=block_tokens,
        watermark_fraction=watermark_fraction,
    )
    engine = (
        ReferenceEngine(policy, instance)
        if shared is None
        else CachingReference(policy, instance, shared)
    )
    steps: Steps = []
    run_step = engine._run_step

    def watched(record: Any, step: Any) -> None:
        chunks = {live.row: chunk for live, chunk in step.prefills}
        steps.append({live.row: 1 for live in step.decodes} | chunks)
        run_step(record, step)

    engine._run_step = watched  # type: ignore[method-assign]
    engine.run(requests)
    return steps


def assert_same_steps(actual: Steps, expected: Steps) -> None:
    """Fails at the first step that differs."""
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=False)):
        assert ours == theirs, f"step {number} of {len(expected)}"
    assert len(actual) == len(expected)


def workload(seed: int, *, count: int, longest: int) -> Requests:
    """Requests of every kind; the shortest prompts have 4 tokens."""
    dice = random.Random(seed)
    return make_requests(
        prompt_tokens=[dice.randint(4, longest) for _ in range(count)],
        output_tokens=[dice.randint(1, longest) for _ in range(count)],
        arrival_s=sorted(dice.randint(0, 40 * count) / 1024 for _ in range(count)),
        scores=[dice.choice([float("nan"), dice.randint(0, 9)]) for _ in range(count)],
        user_class=[dice.choice(["paying", "free"]) for _ in range(count)],
        tbt_s=[dice.choice([1, 8]) / 64 for _ in range(count)],
        client=[dice.choice("abc") for _ in range(count)],
    )


def predicted(seed: int, requests: Requests) -> Requests:
    """Requests of which two of three have a predicted length, as a bundle's calibration gives."""
    dice, quantiles = random.Random(seed), requests.quantiles.copy()
    for row, tokens in enumerate(requests.output_tokens.tolist()):
        if dice.random() < 0.7:
            parts = sorted(tokens * dice.choice([0.25, 0.5, 1.0, 2.0]) for _ in range(5))
            quantiles[row] = tuple(zip((0.1, 0.25, 0.5, 0.75, 0.9), parts, strict=True))
    return replace(requests, quantiles=quantiles)


def beginnings(seed: int, requests: Requests, *, tokens: int) -> Shared:
    """One of two beginnings of that many tokens for two prompts of three, none for the others."""
    dice = random.Random(seed)
    sizes = [dice.choice([0, tokens, tokens]) for _ in range(len(requests))]
    return [
        (dice.randint(0, 1), min(size, prompt - 1))
        for size, prompt in zip(sizes, requests.prompt_tokens.tolist(), strict=True)
    ]


def prompt_of(requests: Requests, row: int, thought: tuple[int, ...] = ()) -> list[int]:
    """Token ids of a prompt; that of a request that does not reason ends in `thought`."""
    count = int(requests.prompt_tokens[row])
    end = () if requests.reasoning_tokens[row] else thought
    return [*random.Random(row).choices(range(3, 500), k=count - len(end)), *end]


def more_than_seats(seats: int, *, ends_thinking: bool = True) -> Requests:
    """Three times as many short requests as seats, which arrive while others decode."""
    return make_requests(
        prompt_tokens=[8] * 3 * seats,
        output_tokens=[40] * 3 * seats,
        reasoning_tokens=[20 if ends_thinking else 40, 0, 40] * seats,
        arrival_s=[number / 64 for number in range(3 * seats)],
    )


def computed_once(steps: Steps, requests: Requests) -> bool:
    """Return True if no token was computed twice: no request has lost KV blocks."""
    least = sum(requests.prompt_tokens + requests.output_tokens - 1)
    return sum(sum(step.values()) for step in steps) == least


def thoughts_in(outputs: Sequence[list[int]]) -> tuple[int, list[int]]:
    """A token that ends thoughts in some of these answers, and each one's tokens until then."""
    late = Counter(token for o in outputs for token in set(o[1:-1]) - {o[0]})
    think_end, how_often = late.most_common(1)[0]
    assert how_often > 2
    return think_end, [o.index(think_end) + 1 if think_end in o else len(o) for o in outputs]


class ByPriority(PolicyWrapper):
    """A `Rank.lane` for each pair of priority (1 for the class "free", else 0) and `Rank.lane`."""

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return self._after(int(request.user_class == "free"), self.policy.rank(request, load))

    def _after(self, priority: int, rank: Rank) -> Rank:
        evict_key = None if rank.evict_key is None else (priority, *rank.evict_key)
        then = None if rank.then is None else self._after(priority, rank.then)
        group = None if rank.group is None else (priority, rank.group)
        lane = 10 * priority + rank.lane
        return rank._replace(lane=lane, evict_key=evict_key, then=then, group=group)


def priorities_of(requests: Requests) -> list[int]:
    """The priorities that `ByPriority` gives them."""
    return [int(name == "free") for name in requests.user_class]


class Dice(Policy):
    """Ranks and rules by a hash of what it sees: no sense in it, and so no blind spot."""

    name = "dice"
    traits = Traits(requires=frozenset({Capability.DEFER_RUNNING, Capability.EVICT}))

    def __init__(
        self,
        seed: int,
        *,
        chunks: Literal["every", "only", "none"] = "none",
        displaces: bool = False,
    ) -> None:
        self.seed = seed
        self.chunks = chunks
        self.displaces = displaces

    def dice(self, *seen: object) -> random.Random:
        return random.Random(repr((self.seed, *seen)))

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        runs = request.phase > Phase.PREFILL
        dice = self.dice(
            request.number,
            request.phase,
            request.generated_tokens,
            request.preemptions,
            request.admission_number,
            (request.last_token_s, load.mean_step_s, load.used_blocks) if runs else None,
        )
        key = (dice.randint(0, 3),)
        lane = 0 if request.phase is Phase.PREFILL else dice.randint(0, 2)
        ends = not self.displaces and dice.random() < 0.2
        return Rank(
            key,
            lane=lane,
            valid_tokens=dice.choice([1, 3, float("inf")]),
            evict_key=(lane, *key) if self.displaces else (dice.randint(0, 3),),
            valid_until_s=load.now_s + 0.25 if ends else float("inf"),
            then=Rank((0,)) if ends and request.phase is not Phase.PREFILL else None,
        )

    def step_rule(self, load: LoadView) -> StepRule:
        dice = self.dice("rule", load.step)
        if self.displaces:
            return StepRule(displace=True, max_resident=dice.choice([None, 4]))
        max_tokens = dice.choice([None, 16, 64])
        max_decodes = dice.choice([None, 1, 3])
        max_prefills = dice.choice([None, None, 1])
        cuts = self.chunks == "every" or (self.chunks == "only" and max_prefills == 1)
        return StepRule(
            max_tokens=max_tokens,
            max_decodes=max_decodes,
            max_prefills=max_prefills,
            max_admissions=dice.choice([None, None, 1]),
            max_resident=dice.choice([None, 4]),
            chunk=dice.choice([None, 10, 40]) if cuts else None,
            mixed=dice.random() < 0.8,
        )


def rivals() -> dict[str, Callable[[], Policy]]:
    """The orders that others propose, to be run on requests with predicted lengths."""
    return {
        "shortest prompt": lambda: load_policy("shortest-prompt", ageing_tokens_per_s=32),
        "residual prompt": lambda: load_policy("residual-prompt", ageing_tokens_per_s=32),
        "uniboost": lambda: load_policy("uniboost", gamma_per_s=1.0),
        "learned uniboost": lambda: load_policy("uniboost-learned", gamma_per_s=1.0),
        "srpt": lambda: load_policy("srpt", every_tokens=3, unknown_tokens=40),
        "token counter": lambda: load_policy("virtual-token-counter"),
        "token counter around": lambda: load_policy(
            "virtual-token-counter", inside="pars", guard="none"
        ),
    }


def small_policies(budget: int) -> dict[str, Callable[[], Policy]]:
    """Every policy that plans steps, with limits that a few requests reach."""
    return {
        "sarathi": lambda: Sarathi(max_tokens=64, max_resident=6),
        "sarathi by prompt": lambda: Sarathi(order="spf", max_tokens=64, max_resident=6),
        "prefill first": lambda: PrefillFirst(max_tokens=budget, max_resident=6),
        "orca": lambda: Orca(max_batch=4),
        "request level": lambda: RequestLevel(max_batch=4),
        "slai": lambda: SLAI(max_tokens=64, max_resident=6, max_decodes=3),
        "slai by class": lambda: SLAI(max_tokens=32, max_decodes=4, paying_first=True, offset=2.0),
        "rad": lambda: RAD(max_started=5, tile=3, chunk=32),
        "rad, the twin": lambda: RADTwin(max_started=5, tile=3, chunk=32),
        "round robin": lambda: RoundRobin(quantum_tokens=10),
        "a guard around": lambda: StarvationGuard(SLAI(max_tokens=24, max_decodes=3), after_s=0.5),
        "classes around": lambda: ClassPriority(Sarathi(order="spf", max_tokens=48)),
        "shares around": lambda: FairShares(Sarathi(order="spf", max_tokens=48), weights=WEIGHTS),
        "shares around groups": lambda: FairShares(SLAI(max_tokens=24, max_decodes=3)),
        "classes around groups": lambda: ClassPriority(SLAI(max_tokens=24, max_decodes=3)),
    }
