"""Conformance with the laws of scheduling: `check_policy(make_policy)`, and `check_placement`.

    from scheduler_adapters.checks import check_policy

    check_policy(ShortestPrompt)          # raises InvalidDecision with the name of the broken law
    check_policy("my_package.policies:ShortestPrompt")

Small workloads run in the simulator under any policy, or on three instances under any placement: a
burst, steady arrivals, scarce KV memory, missing scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from lengthwise.errors import ConfigError, InvalidDecision
from scheduler_adapters.placement import Placement, load_placement, overrides
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import (
    Policy,
    PolicyWrapper,
    ask_rank,
    describe,
    flaw_of,
    load_policy,
)
from scheduler_adapters.simulator.cluster import ClusterRun, simulate_cluster
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency, Chunk, LatencyModel
from scheduler_adapters.simulator.links import Fabric, HostLink
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import LoadView, Rank, RequestView
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests

MakePolicy = Callable[[], Policy]


def check_policy(policy: MakePolicy | str) -> list[str]:
    """Run every law against fresh policies and return the names of the laws kept.

    `policy` is a class or function that makes one, or its name or import path. Raises
    ConfigError if it makes none, and InvalidDecision with the broken law and the workload.
    """
    kept: list[str] = []
    for workload, run in _runs(_maker(policy, load_policy)):
        laws = ((law.__name__, law(run)) for law in LAWS)
        kept += _kept(f"policy {describe(run.policy)}", workload, laws)
    return kept


def _kept(subject: str, workload: str, laws: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names of the laws on a workload; InvalidDecision for the first complaint."""
    kept = []
    for law, complaint in laws:
        if complaint:
            raise InvalidDecision(
                f"{subject} breaks the law {law!r} on the workload {workload!r}: {complaint}"
            )
        kept.append(f"{workload}: {law}")
    return kept


def check_placement(placement: Callable[[], Placement] | str) -> list[str]:
    """Run a placement on small clusters under FCFS and return the names of the laws kept.

    `placement` is a class or function that makes one, or its name or import path. Raises
    ConfigError if it makes none, and InvalidDecision with the broken law and the workload.
    """
    make, kept = _maker(placement, load_placement), []
    ends = Outage(instance=2, at_s=0.05, until_s=0.6), Outage(instance=0, at_s=0.3, until_s=0.9)
    cases: dict[str, dict[str, Any]] = {"": {}, ", with instances that die": {"outages": ends}}
    tried, _ = _watched(make())
    if overrides(tried, "at_prefill_end"):
        cases[", in pools"] = {"roles": ["prefill", "decode", "both"]}
    for workload, (requests, instance) in _workloads().items():
        for case, options in cases.items():
            run = partial(
                simulate_cluster,
                requests,
                make_policy=FCFS,
                instances=[instance] * 3,
                fabric=Fabric(kv_bytes_per_token=1, bytes_per_s=1000.0),
                **options,
            )
            laws = _laws_of_placements(run, make)
            kept += _kept(f"placement {tried.name!r}", workload + case, laws.items())
    return kept


def _laws_of_placements(
    run: Callable[..., ClusterRun], make: Callable[[], Placement]
) -> dict[str, str]:
    watched, complaints = _watched(make())
    try:
        one, other = run(placement=watched), run(placement=make())
    except InvalidDecision as error:
        return {"decisions_can_be_carried_out": str(error)}
    same = all(
        np.array_equal(getattr(one.timeline, name), getattr(other.timeline, name), equal_nan=True)
        for name in ("instance", "migrations", "finished_s")
    )
    laws = (every_request_finishes_once_with_all_its_tokens, times_are_in_order)
    return {
        "decisions_can_be_carried_out": "",
        "views_are_only_read": "".join(complaints[:1]),
        **{law.__name__: law(one) for law in laws},
        "equal_runs_are_equal": "" if same else "a second run differs; seed what is random",
    }


Made = TypeVar("Made")


def _watched(placement: Placement) -> tuple[Placement, list[str]]:
    """Return the placement with watched decisions, and a list of those that change a view."""
    if not isinstance(placement, Placement):
        raise ConfigError(f"{placement!r} was made; it must be a Placement")
    complaints: list[str] = []

    def watched(decide: Callable[..., Any], *arguments: Any) -> Any:
        first, *_, instances = arguments
        request = isinstance(first, RequestView) and first
        before = request and _shown(request), [replace(view) for view in instances]
        answer = decide(*arguments)
        if (request and _shown(request), list(instances)) != before:
            what = f"deciding on {request.request_id!r}" if request else f"the tick at {first} s"
            complaints.append(f"{what} changed one")
        return answer

    for method in ("place", "at_phase_change", "at_prefill_end", "tick"):
        decide = partial(watched, getattr(placement, method))
        object.__setattr__(placement, method, decide)  # Works for frozen dataclasses, too.
    return placement, complaints


def _maker(made: Callable[[], Made] | str, load: Callable[[str], Made]) -> Callable[[], Made]:
    if isinstance(made, str):
        return partial(load, made)
    if not callable(made):
        raise ConfigError(
            f"the check was given {made!r}; every run needs a fresh one, so give its "
            "class, a function that makes one, or its import path"
        )
    return made


@dataclass(frozen=True)
class Run:
    """One run of a policy: the input of a law."""

    policy: Policy
    instance: Instance
    timeline: Timeline
    steps: Sequence[StepSize]
    make_policy: MakePolicy


@dataclass(frozen=True)
class StepSize:
    """Size and duration of one engine step."""

    num_decodes: int
    prefills: Sequence[Chunk]
    duration_s: float

    @property
    def tokens(self) -> int:
        return self.num_decodes + sum(chunk for _, chunk in self.prefills)


@dataclass(frozen=True)
class ObservedLatency(LatencyModel):
    """A latency model that records its steps."""

    latency: LatencyModel
    steps: list[StepSize] = field(default_factory=list)

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        duration_s = self.latency.step_s(num_decodes, decode_context, prefills)
        self.steps.append(StepSize(num_decodes, tuple(prefills), duration_s))
        return duration_s


class _Checked(PolicyWrapper):
    """A policy whose ranks are checked one by one."""

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        before = _shown(request), replace(load)
        rank = ask_rank(self.policy, request, load)
        flaw = flaw_of(rank)  # engines check less, for speed
        if (_shown(request), load) != before:
            flaw = "rank() changed a view; views are read-only"
        elif not flaw and rank.valid_until_s <= load.now_s:
            flaw = f"the rank ended at {rank.valid_until_s} s, given at {load.now_s} s; end later"
        if flaw:
            raise InvalidDecision(
                f"policy {describe(self.policy)}, request {request.request_id!r}: {flaw}"
            )
        return rank


def _shown(request: RequestView) -> RequestView:
    """Return a copy without the two fields that `enqueued_s` may change."""
    return replace(request, queue=None, queue_entered_s=0.0)


def _runs(make_policy: MakePolicy) -> Iterator[tuple[str, Run]]:
    for name, (requests, instance) in _workloads().items():
        made = make_policy()
        if not isinstance(made, Policy):
            raise ConfigError(f"{make_policy!r} made {made!r}; it must make a Policy")
        observed = ObservedLatency(instance.latency)
        timeline = simulate(requests, _Checked(made), replace(instance, latency=observed))
        yield name, Run(made, instance, timeline, observed.steps, make_policy)


def _workloads() -> dict[str, tuple[Requests, Instance]]:
    """Return small workloads; each has exposed a faulty scheduler before."""
    latency = AffineLatency(base_s=0.01, per_token_s=1e-4, per_context_token_s=1e-7)
    # Copies take no time, so that no step waits for one and the laws hold for all policies.
    host = HostLink(kv_bytes_per_token=1, bytes_per_s=1e18)
    roomy = Instance(latency=latency, kv_blocks=10_000, max_num_seqs=8, max_tokens=64, host=host)
    burst = _requests(60, seed=1)
    steady_s = arrivals_s(60, rate_per_s=4.0, seed=2)
    return {
        "burst": (burst, roomy),
        "steady": (replace(_requests(60, seed=2), arrival_s=steady_s), roomy),
        "scarce memory": (burst, replace(roomy, kv_blocks=60)),
        "no scores": (burst.with_scores(np.nan), roomy),
        "single tokens": (replace(burst, output_tokens=np.ones(60, dtype=np.int64)), roomy),
    }


def _requests(count: int, *, seed: int) -> Requests:
    random = np.random.default_rng(seed)
    output_tokens = random.integers(1, 120, count)
    scores = output_tokens + random.normal(0, 20, count)
    scores[::7] = np.nan
    return make_requests(
        prompt_tokens=random.integers(1, 200, count),
        output_tokens=output_tokens,
        reasoning_tokens=output_tokens // 3,
        scores=scores,
        user_class=np.where(np.arange(count) % 2, "paying", "free"),
        tbt_s=np.where(np.arange(count) % 2, 0.1, 0.5),
    )


def every_request_finishes_once_with_all_its_tokens(run: Run | ClusterRun) -> str:
    wanted, (row, first, last) = run.timeline.requests.output_tokens, run.timeline.runs.T
    emitted = np.bincount(row, last - first + 1, len(wanted))
    for wrong in np.flatnonzero(emitted != wanted):
        return f"request {wrong} got {emitted[wrong]:.0f} of {wanted[wrong]} tokens"
    return ""


def work_is_neither_lost_nor_invented(run: Run) -> str:
    requests, done = run.timeline.requests, sum(step.tokens for step in run.steps)
    needed = int((requests.prompt_tokens + requests.output_tokens - 1).sum())
    evictions = int(run.timeline.preemptions.sum())
    if done == needed or (done > needed and evictions):
        return ""
    return f"{done} tokens were processed, {needed} are needed, with {evictions} evictions"


def times_are_in_order(run: Run | ClusterRun) -> str:
    timeline = run.timeline
    first_s, answer_s = timeline.first_token_s, timeline.first_answer_s
    # Nothing but reasoning: there is no first answering token.
    answer_s = np.where(np.isnan(answer_s), first_s, answer_s)
    arrival_s, scheduled_s = timeline.requests.arrival_s, timeline.scheduled_s
    instants_s = np.stack([arrival_s, scheduled_s, first_s, answer_s, timeline.finished_s])
    bad = np.flatnonzero((np.diff(instants_s, axis=0) < 0).any(axis=0))
    return f"request {int(bad[0])} goes back in time" if len(bad) else ""


def the_engine_never_idles_with_work(run: Run) -> str:
    last_end_s, step_end_s = run.timeline.tick_s[:-1], run.timeline.tick_s[1:]
    idle_s = step_end_s - last_end_s - np.array([step.duration_s for step in run.steps[1:]])
    timeline = run.timeline
    arrived = np.searchsorted(np.sort(timeline.requests.arrival_s), last_end_s, "right")
    left = np.searchsorted(np.sort(timeline.finished_s), last_end_s, "right")
    bad = np.flatnonzero((arrived > left) & (idle_s > 1e-9))
    return f"idle from {last_end_s[bad[0]]} s on, with requests there" if len(bad) else ""


def steps_keep_the_engine_limits(run: Run) -> str:
    for step in run.steps:
        if step.num_decodes + len(step.prefills) > run.instance.max_num_seqs:
            return f"{step} has more than {run.instance.max_num_seqs} requests"
        # One whole prompt may exceed the budget, or it would never run.
        spared = max((chunk for _, chunk in step.prefills), default=0)
        over = step.tokens - (run.instance.max_tokens or step.tokens)
        if over > 0 and spared <= over:
            return f"{step} has more than {run.instance.max_tokens} tokens"
    return ""


def equal_runs_are_equal(run: Run) -> str:
    again = simulate(run.timeline.requests, run.make_policy(), run.instance)
    pairs = ((again.tick_s, run.timeline.tick_s), (again.runs, run.timeline.runs))
    same = all(np.array_equal(*pair) for pair in pairs)
    return "" if same else "a second run differs; policies have no randomness and no clock"


LAWS: tuple[Callable[[Run], str], ...] = (
    every_request_finishes_once_with_all_its_tokens,
    work_is_neither_lost_nor_invented,
    times_are_in_order,
    the_engine_never_idles_with_work,
    steps_keep_the_engine_limits,
    equal_runs_are_equal,
)
"""Each returns what is wrong with a run, or an empty text."""
