"""Random policies, workloads and instances for the tests of the simulator, and equal timelines."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from hypothesis import strategies as st

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, StepRule
from scheduler_adapters.workload.requests import Requests, make_requests

LATENCY = AffineLatency(
    base_s=0.013, per_token_s=1.7e-4, per_context_token_s=1.1e-7, per_attention_pair_s=1e-8
)


@dataclass(frozen=True)
class AnyPolicy(Policy):
    """A policy put together from every feature of the interface; pure, as policies are."""

    key: str = "arrival"
    lanes: str = "one"
    expiry: str = "never"
    evict: str = "arrival"
    group: str = "none"
    valid_tokens: float = float("inf")
    sticky: bool = False
    rules: tuple[StepRule, ...] = ()
    name = "any"

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if self.group != "none" and request.phase >= Phase.REASONING:
            return self._rank_of_group(request, load)
        key = self._key(request, load)
        until_s, then = self._validity(request, load)
        return Rank(
            key,
            self._lane(request, load),
            until_s,
            self.valid_tokens,
            then=then,
            evict_key=self._evict_key(request, key),
            sticky=self.sticky and then is None,
        )

    def _key(self, request: RequestView, load: LoadView) -> tuple[float, ...]:
        return {
            "arrival": (),
            "score": (_score(request),),
            "remaining": (_score(request) - request.generated_tokens,),
            "preemptions": (-request.preemptions, _score(request)),
            "quantum": (
                request.generated_tokens // 7,
                request.enqueued_s((request.generated_tokens // 7,), load.now_s),
            ),
            "load": (_score(request) + load.num_waiting % 3, load.used_blocks % 2),
        }[self.key]

    def _lane(self, request: RequestView, load: LoadView) -> int:
        return {
            "one": 0,
            "prefill first": int(request.phase >= Phase.REASONING),
            "class": int(request.user_class == "free"),
            "phase": int(request.phase),
            "odd": (request.number + request.generated_tokens // 5) % 3,
        }[self.lanes]

    def _validity(self, request: RequestView, load: LoadView) -> tuple[float, Rank | None]:
        if self.expiry == "never":
            return float("inf"), None
        if self.expiry == "ask":
            return load.now_s + 0.05 + _score(request) * 0.01, None
        starves_s = request.arrival_s + 0.3
        if load.now_s >= starves_s:
            return float("inf"), None
        evict_key = self._evict_key(request, ())
        return starves_s, Rank((), self._lane(request, load), evict_key=evict_key)

    def _evict_key(self, request: RequestView, key: tuple[float, ...]) -> tuple[float, ...] | None:
        return {
            "arrival": (),
            "key": key,
            "never": None,
            "prefills": (1.0,) if request.phase <= Phase.PREFILL else None,
        }[self.evict]

    def _rank_of_group(self, request: RequestView, load: LoadView) -> Rank:
        group = request.user_class if self.group == "class" else "all"
        slack_s = 0.08 if group == "free" else 0.02
        critical_s = request.last_token_s + slack_s - load.mean_step_s
        critical = Rank((critical_s,), 0, valid_tokens=1, group=group, evict_key=None)
        if load.now_s >= critical_s:
            return critical
        return Rank((critical_s,), 2, critical_s, 1, then=critical, group=group, evict_key=None)

    def step_rule(self, load: LoadView) -> StepRule:
        if not self.rules:
            return super().step_rule(load)
        return self.rules[(load.num_decoding + load.num_waiting) % len(self.rules)]


def _score(request: RequestView) -> float:
    if request.score is not None:
        return request.score
    return -1.0 if request.median_score is None else request.median_score + 0.5


SMALL: dict[str, Callable[[], Policy]] = {
    "round-robin-small": lambda: RoundRobin(quantum_tokens=5),
    "pascal-small": lambda: Pascal(quantum_tokens=5, demote_above_tokens=40),
}
"""Policies whose quanta end often."""
OFFLOADING: dict[str, Callable[[], Policy]] = {
    "fcfs-offload": lambda: FCFS(offload=True),
    "round-robin-offload": lambda: RoundRobin(quantum_tokens=5, offload=True),
    "pascal-offload": lambda: Pascal(quantum_tokens=5, demote_above_tokens=40, offload=True),
}
caps = st.one_of(st.none(), st.integers(1, 6))
rules = st.builds(
    StepRule,
    max_tokens=st.one_of(st.none(), st.integers(1, 100)),
    max_decodes=st.one_of(st.none(), st.integers(0, 6)),
    max_prefills=st.one_of(st.none(), st.integers(0, 4)),
    max_admissions=caps,
    max_resident=caps,
    chunk=st.one_of(st.none(), st.integers(1, 40)),
    mixed=st.booleans(),
    whole_prompts=st.booleans(),
    padded_tokens=st.booleans(),
)
policies = st.builds(
    AnyPolicy,
    key=st.sampled_from(["arrival", "score", "remaining", "preemptions", "quantum", "load"]),
    lanes=st.sampled_from(["one", "prefill first", "class", "phase", "odd"]),
    expiry=st.sampled_from(["never", "ask", "then"]),
    evict=st.sampled_from(["arrival", "key", "never", "prefills"]),
    group=st.sampled_from(["none", "class", "all"]),
    valid_tokens=st.sampled_from([float("inf"), 1, 3, 7, 2.5]),
    sticky=st.booleans(),
    rules=st.one_of(st.just(()), st.lists(rules, min_size=1, max_size=3).map(tuple)),
)


@st.composite
def workloads(draw) -> Requests:
    count = draw(st.integers(1, 30))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    output_tokens = random.integers(1, draw(st.sampled_from([2, 20, 90])) + 1, count)
    gap_s = draw(st.sampled_from([0.0, 0.02, 0.3]))
    requests = make_requests(
        prompt_tokens=random.integers(1, 100, count),
        output_tokens=output_tokens,
        reasoning_tokens=random.integers(0, output_tokens + 1),
        arrival_s=np.cumsum(random.exponential(gap_s, count)) if gap_s else np.zeros(count),
        scores=random.integers(0, 9, count),
        user_class=random.choice(["paying", "free"], count),
    )
    missing = random.random(count) < random.choice([0.0, 0.3, 1.0])
    delays_s = [0.0, 0.0, 0.05, 0.8, np.inf] if random.random() < 0.5 else [0.0]
    requests = replace(requests, score_delay_s=random.choice(delays_s, count))
    return requests.with_scores(np.where(missing, np.nan, requests.score))


instances = st.builds(
    Instance,
    latency=st.just(LATENCY),
    kv_blocks=st.sampled_from([8, 14, 20, 40, 400]),
    max_num_seqs=st.sampled_from([1, 3, 8, 100]),
    max_tokens=st.sampled_from([None, 3, 32, 200]),
    watermark_fraction=st.sampled_from([0.0, 0.05]),
    decode_headroom_blocks=st.integers(0, 1),
)


hosts = st.builds(
    HostLink,
    kv_bytes_per_token=st.just(1),
    bytes_per_s=st.sampled_from([1e9, 20_000.0, 1_000.0, 100.0]),
    latency_s=st.sampled_from([0.0, 0.02]),
)
"""From faster than a step to several steps for a block."""


class EveryToken(EngineObserver):
    """An observer of tokens, for which an engine fills every step anew."""

    def emitted(self, request, num_tokens, now_s):
        pass


def request_of(
    request_id: str = "a",
    arrival_s: float = 0.0,
    prompt_tokens: int = 16,
    output_tokens: int = 10,
    reasoning_tokens: int = 0,
    **fields,
) -> RequestState:
    """A request to be submitted; `fields` are those of its view."""
    view = RequestView(request_id, 0, arrival_s, prompt_tokens, **fields)
    return RequestState(view, output_tokens, reasoning_tokens)


def serve(engine: Engine, requests: Requests) -> Timeline:
    """Serve all requests to the end."""
    engine.submit_all(requests)
    engine.advance(inf)
    return engine.timeline(requests)


def state_of(engine: Engine, request_id: str) -> RequestState:
    """The unfinished request of this id."""
    (state,) = (
        one for one in engine.requests if not one.is_gone and one.view.request_id == request_id
    )
    return state


def assert_equal(one: Timeline, other: Timeline) -> None:
    for name in ("tick_s", "runs", "scheduled_s", "first_token_s", "first_answer_s"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(one.answer_scheduled_s, other.answer_scheduled_s)
    np.testing.assert_array_equal(one.finished_s, other.finished_s)
    np.testing.assert_array_equal(one.preemptions, other.preemptions)
    np.testing.assert_array_equal(one.rejected, other.rejected)
