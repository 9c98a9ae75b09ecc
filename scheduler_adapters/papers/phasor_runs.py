"""Runs of the Phasor experiments: workloads, systems, and what is measured of a run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_type_hints

import numpy as np

from scheduler_adapters.papers.phasor_measures import ContiguousRuns, fit_prefill_cost
from scheduler_adapters.placement import InstanceId, Move, Placement, SetRole
from scheduler_adapters.placements.distserve import DistServe
from scheduler_adapters.placements.memory_aware import MemoryAwarePools
from scheduler_adapters.placements.phasor import Phasor
from scheduler_adapters.placements.splitwise import Splitwise
from scheduler_adapters.policies.prefill_first import PrefillFirst
from scheduler_adapters.simulator.cluster import ClusterRun, simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.facts import gpu_of
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.timeline.latency_metrics import tpot_s
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import InstanceView, LoadView, RequestView, Role
from scheduler_adapters.workload.arrivals import (
    ARRIVAL_STREAM,
    LENGTH_STREAM,
    gamma_arrivals_s,
    poisson_arrivals_s,
)
from scheduler_adapters.workload.requests import Floats, Requests, make_requests

NUM_INSTANCES: Final = 8
GPU: Final = "v100-32g"
NVLINK_BYTES_PER_S: Final = 25e9
STEP_TOKENS: Final = 2048
CALIBRATED_TOKENS: Final = (128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)
LONGEST_PROMPT: Final = 8192


@dataclass(frozen=True, kw_only=True)
class PaperWorkload:
    """Lengths of Table 1 and targets of Table 3."""

    name: str
    prompt_tokens: int
    output_tokens: int
    ttft_slo_s: float
    tpot_slo_s: float
    is_bursty: bool = False
    """Whether arrivals are gamma with CV 3, not Poisson."""
    length_cv: float = 0.0
    """0: all lengths are these; else they are means of log-normal ones with this CV."""

    def requests(self, count: int, rate_per_s: float, seed: int) -> Requests:
        """Return requests that arrive at a rate."""
        if self.is_bursty:
            arrival_s = gamma_arrivals_s(count, rate_per_s=rate_per_s, cv=3.0, seed=seed)
        else:
            arrival_s = poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=seed)
        return replace(self.all_at_once(count, seed), arrival_s=arrival_s)

    def all_at_once(self, count: int, seed: int) -> Requests:
        """Return requests that arrive at 0 s."""
        prompt_tokens = np.full(count, self.prompt_tokens)
        output_tokens = np.full(count, self.output_tokens)
        if self.length_cv:
            random = np.random.default_rng((seed, LENGTH_STREAM))
            spread = np.sqrt(np.log(1 + self.length_cv**2))
            factors = random.lognormal(-(spread**2) / 2, spread, (2, count))
            prompt_tokens = np.clip(prompt_tokens * factors[0], 1, LONGEST_PROMPT).astype(int)
            output_tokens = np.clip(output_tokens * factors[1], 1, LONGEST_PROMPT).astype(int)
        return make_requests(prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def closed_loop(self, count: int, clients: int, seed: int) -> Requests:
        """Return requests for a closed loop; the first of each client is somewhere in its answer.

        Else clients with equal lengths would finish together, and send together, for ever.
        """
        requests = self.all_at_once(count, seed)
        left = np.random.default_rng((seed, ARRIVAL_STREAM)).random(count)
        left[clients:] = 1.0
        output_tokens = np.ceil(requests.output_tokens * left).astype(int)
        return replace(requests, output_tokens=np.maximum(1, output_tokens))

    def shock(self, seed: int, *, calm_per_s: float, shock_per_s: float, end_s: float) -> Requests:
        """Return requests with Poisson arrivals, of another rate from 90 s to 120 s."""
        random = np.random.default_rng((seed, ARRIVAL_STREAM))
        pieces = []
        for rate_per_s, start_s, stop_s in (
            (calm_per_s, 0.0, min(90.0, end_s)),
            (shock_per_s, 90.0, min(120.0, end_s)),
            (calm_per_s, 120.0, end_s),
        ):
            if stop_s > start_s:
                count = random.poisson(rate_per_s * (stop_s - start_s))
                pieces.append(np.sort(random.uniform(start_s, stop_s, count)))
        arrival_s = np.concatenate(pieces)
        return replace(self.all_at_once(len(arrival_s), seed), arrival_s=arrival_s)


WORKLOADS: Final = {
    one.name: one
    for one in (
        PaperWorkload(
            name="S-S", prompt_tokens=128, output_tokens=128, ttft_slo_s=0.3, tpot_slo_s=0.15
        ),
        PaperWorkload(
            name="M-M", prompt_tokens=1024, output_tokens=1024, ttft_slo_s=0.4, tpot_slo_s=0.2
        ),
        PaperWorkload(
            name="L-S", prompt_tokens=2048, output_tokens=128, ttft_slo_s=2.25, tpot_slo_s=0.13
        ),
        PaperWorkload(
            name="S-L", prompt_tokens=128, output_tokens=2048, ttft_slo_s=0.125, tpot_slo_s=0.2
        ),
        PaperWorkload(
            name="L-L", prompt_tokens=2048, output_tokens=512, ttft_slo_s=3.0, tpot_slo_s=0.18
        ),
        PaperWorkload(
            name="BurstGPT",
            prompt_tokens=1024,
            output_tokens=256,
            ttft_slo_s=0.4,
            tpot_slo_s=0.2,
            is_bursty=True,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class System:
    """A placement and its pools: prefill instances, decode instances, and elastic ones."""

    name: str
    pools: tuple[int, int, int]
    settings: tuple[tuple[str, Any], ...] = ()
    """Names and values, of Phasor."""

    @property
    def roles(self) -> list[Role]:
        roles: tuple[Role, ...] = ("prefill", "decode", "both")
        return [role for role, count in zip(roles, self.pools, strict=True) for _ in range(count)]


ELASTIC: Final = (3, 3, 2)
PHASOR: Final = System(name="Phasor", pools=ELASTIC)
SPLITWISE: Final = System(name="Splitwise", pools=ELASTIC)
MEMORY_AWARE: Final = System(name="memory-aware", pools=(3, 3, 0))
ABLATIONS: Final = (
    System(name="w/o Phi", pools=ELASTIC, settings=(("routing", "queue-length"),)),
    System(name="w/o mixed pool", pools=(4, 4, 0)),
    System(name="w/o defragmentation", pools=ELASTIC, settings=(("theta_frag", -np.inf),)),
)


def distserve(num_prefill: int) -> System:
    """Return DistServe with a static split."""
    return System(name="DistServe", pools=(num_prefill, NUM_INSTANCES - num_prefill, 0))


class GpuCluster:
    """Eight GPUs with one model, and the prefill cost that is calibrated on them."""

    def __init__(self, model: str) -> None:
        profile = f"{model}@{GPU}:phasor"
        self.profile = profile
        self.instance = Instance.preset(profile, max_num_seqs=256, max_tokens=STEP_TOKENS)
        self.fabric = Fabric.of_model(model, bytes_per_s=NVLINK_BYTES_PER_S)
        self.cost, self.r2 = fit_prefill_cost(
            CALIBRATED_TOKENS,
            [self.instance.prefill_s(tokens) for tokens in CALIBRATED_TOKENS],
            peak_flop_per_s=gpu_of(GPU).flops_per_s,
            model=model,
            device=GPU,
        )

    def placement(self, system: System, workload: PaperWorkload) -> Placement:
        """Return a fresh placement; what is expected of an output is the workload's mean."""
        if system.name == "DistServe":
            return DistServe()
        if system.name == "Splitwise":
            return Splitwise(output_tokens=workload.output_tokens)
        if system.name == "memory-aware":
            return MemoryAwarePools()
        settings: dict[str, Any] = {
            "cost": self.cost,
            "ttft_slo_s": workload.ttft_slo_s,
            "output_tokens": workload.output_tokens,
        }
        return Phasor(**settings | dict(system.settings))

    def run(
        self,
        system: System,
        workload: PaperWorkload,
        requests: Requests,
        *,
        placement: Placement | None = None,
        clients: int | None = None,
        observers: Callable[[int], Iterable[EngineObserver]] = lambda instance: (),
    ) -> ClusterRun:
        """Serve requests; prompts go first and whole, as in vLLM on GPUs without chunks."""
        return simulate_cluster(
            requests,
            placement or self.placement(system, workload),
            partial(PrefillFirst, max_tokens=STEP_TOKENS, padded=False),
            [self.instance] * sum(system.pools),
            fabric=self.fabric,
            roles=system.roles,
            clients=clients,
            observers=observers,
        )

    def meets_slo(self, system: System, workload: PaperWorkload, clients: int, seed: int) -> bool:
        """Return whether a closed loop keeps TTFT P99 and TPOT P99 within their budgets.

        Measured are requests that were sent when the burst at the start had been prefilled, but for
        the last ones, which have less company.
        """
        count = max(REQUESTS_PER_CLIENT * clients, 2 * clients + LEAST_MEASURED)
        requests = workload.closed_loop(count, clients, seed)
        timeline = self.run(system, workload, requests, clients=clients).timeline
        row = np.arange(count)
        started_s = timeline.first_token_s[:clients].max()
        is_warm = (row >= clients) & (timeline.requests.arrival_s >= started_s)
        return slo_is_met(timeline.take(is_warm & (row < count - clients)), workload)


REQUESTS_PER_CLIENT: Final = 3
LEAST_MEASURED: Final = 200


def slo_is_met(timeline: Timeline, workload: PaperWorkload) -> bool:
    """Return whether 99% of the requests have their first token, and 99% their pace, in time.

    Not where there are none: so long is the burst at the start.
    """
    if not len(timeline.requests):
        return False
    ttft_p99_s = percentile(timeline.ttft_s(), 99)
    return ttft_p99_s <= workload.ttft_slo_s and percentile(pace_s(timeline), 99) <= (
        workload.tpot_slo_s
    )


def pace_s(timeline: Timeline) -> Floats:
    """Return TPOT of the requests with two tokens or more."""
    return tpot_s(timeline)[timeline.requests.output_tokens > 1]


def percentile(values: Floats, percent: float) -> float:
    """Return a percentile of the values that there are; inf where one is missing."""
    return np.inf if np.isnan(values).any() else float(np.percentile(values, percent))


def attainment(timeline: Timeline, workload: PaperWorkload) -> float:
    """Return the share of requests that meet both of their targets."""
    has_pace = ~(tpot_s(timeline) > workload.tpot_slo_s)
    is_met = (timeline.ttft_s() <= workload.ttft_slo_s) & has_pace
    return float(is_met.mean())


@dataclass(frozen=True, slots=True)
class Sample:
    """One instance at one time."""

    at_s: float
    instance: int
    role: Role
    free_blocks: int
    num_decoding: int
    num_queued: int
    """Requests that wait for their prefill or are in it."""
    unusable: float = 0.0
    """Share of what is free beside the longest free run, had each request one run of blocks."""


class Sampled(Placement):
    """Another placement, whose instances are looked at twice a second."""

    def __init__(self, placement: Placement, *, output_tokens: int) -> None:
        self.placement = placement
        for trait in get_type_hints(Placement):
            setattr(self, trait, getattr(placement, trait))
        self.samples: list[Sample] = []
        self.slots = ContiguousRuns(output_tokens)
        self.next_s = 0.0

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return self.placement.place(request, instances)

    def at_phase_change(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId:
        return self.placement.at_phase_change(request, instance, instances)

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        return self.placement.at_prefill_end(request, instance, instances)

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> Sequence[Move | SetRole]:
        if now_s >= self.next_s:
            self.next_s += 0.5
            for view in instances:
                self.slots.update(view)
                unusable = self.slots.unusable(view.instance_id)
                self.samples.append(_sample(now_s, view, unusable))
        return self.placement.tick(now_s, instances)


def _sample(now_s: float, view: InstanceView, unusable: float) -> Sample:
    return Sample(
        at_s=now_s,
        instance=view.instance_id,
        role=view.role,
        free_blocks=view.unclaimed_blocks,
        num_decoding=view.num_answering,
        num_queued=view.num_waiting + view.num_prefilling,
        unusable=unusable,
    )


def fragmentation(samples: Sequence[Sample], large_blocks: int | None, total_blocks: int) -> Floats:
    """Return at each time the share of the decode instances' KV memory that is unusable (H_frag).

    That is what remains of the free blocks when as many requests of `large_blocks` as fit are taken
    in; or without a number what is not in the longest free run, had each request one run of blocks.
    """
    decoding = [one for one in samples if one.role != "prefill"]
    free = np.array([max(0, one.free_blocks) for one in decoding])
    unusable = (
        free * [one.unusable for one in decoding] if large_blocks is None else free % large_blocks
    )
    _, index = np.unique([one.at_s for one in decoding], return_inverse=True)
    return np.bincount(index, unusable) / (np.bincount(index) * total_blocks)


IDLE_W: Final = 55.0
PREFILL_W: Final = 250.0
DECODE_W: Final = (130.0, 200.0)
"""Of one decode, and of a full batch."""


class PowerMeter(EngineObserver):
    """Energy of one GPU while it runs steps; between them it draws `IDLE_W`."""

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.busy_s = self.busy_joules = 0.0

    def ran(self, load: LoadView, duration_s: float, num_resident: int) -> None:
        low_w, high_w = DECODE_W
        power_w = low_w + (high_w - low_w) * min(1.0, load.num_decoding / self.max_num_seqs)
        self.busy_s += duration_s
        self.busy_joules += duration_s * (PREFILL_W if load.num_prefilling else power_w)

    def joules(self, elapsed_s: float) -> float:
        """Return the energy of a run."""
        return self.busy_joules + IDLE_W * max(0.0, elapsed_s - self.busy_s)
