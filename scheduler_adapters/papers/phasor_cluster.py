"""Phasor's test bed: workloads, systems, eight GPUs, and the meters that read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, get_type_hints

import numpy as np
import pandas as pd

from scheduler_adapters.papers.runs import paper_file
from scheduler_adapters.placement import InstanceId, Move, Placement, SetRole, load_placement
from scheduler_adapters.placements.freeness import PrefillCost
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
STEP_TOKENS: Final = 2048
CALIBRATED_TOKENS: Final = (128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)
LONGEST_PROMPT: Final = 8192
REQUESTS_PER_CLIENT: Final = 3
LEAST_MEASURED: Final = 200
SHOCK: Final = ((5.0, 0.0, 90.0), (25.0, 90.0, 120.0), (5.0, 120.0, 180.0))
"""Requests per second from a start to an end in seconds."""


@dataclass(frozen=True)
class PaperWorkload:
    """Lengths of Table 1 and targets of Table 3."""

    name: str
    prompt_tokens: int
    output_tokens: int
    ttft_slo_s: float
    tpot_slo_s: float
    is_bursty: bool = False
    """Gamma arrivals with CV 3; False: Poisson arrivals."""
    length_cv: float = 0.0
    """0: all lengths are these; else they are means of log-normal ones with this CV."""

    def requests(self, count: int, rate_per_s: float, seed: int) -> Requests:
        """Return requests that arrive at a rate."""
        draw = partial(gamma_arrivals_s, cv=3.0) if self.is_bursty else poisson_arrivals_s
        arrival_s = draw(count, rate_per_s=rate_per_s, seed=seed)
        return replace(self.all_at_once(count, seed), arrival_s=arrival_s)

    def all_at_once(self, count: int, seed: int) -> Requests:
        """Return requests that arrive at 0 s."""
        lengths = np.repeat([[self.prompt_tokens], [self.output_tokens]], count, axis=1)
        if self.length_cv:
            spread = np.sqrt(np.log(1 + self.length_cv**2))
            random = np.random.default_rng((seed, LENGTH_STREAM))
            factors = random.lognormal(-(spread**2) / 2, spread, (2, count))
            lengths = np.clip(lengths * factors, 1, LONGEST_PROMPT).astype(int)
        return make_requests(prompt_tokens=lengths[0], output_tokens=lengths[1])

    def closed_loop(self, count: int, clients: int, seed: int) -> Requests:
        """Return requests for a closed loop; the first ones of the clients are partly answered."""
        # Clients with equal lengths would otherwise finish together, and send together, for ever.
        requests = self.all_at_once(count, seed)
        left = np.random.default_rng((seed, ARRIVAL_STREAM)).random(count)
        left[clients:] = 1.0
        output_tokens = np.ceil(requests.output_tokens * left).astype(int)
        return replace(requests, output_tokens=np.maximum(1, output_tokens))

    def shock(self, seed: int) -> Requests:
        """Return requests with Poisson arrivals at the rates of `SHOCK`."""
        random = np.random.default_rng((seed, ARRIVAL_STREAM))
        pieces = []
        for rate_per_s, start_s, end_s in SHOCK:
            count = random.poisson(rate_per_s * (end_s - start_s))
            pieces.append(np.sort(random.uniform(start_s, end_s, count)))
        arrival_s = np.concatenate(pieces)
        return replace(self.all_at_once(len(arrival_s), seed), arrival_s=arrival_s)

    def slo_is_met(self, timeline: Timeline) -> bool:
        """Return whether P99 of TTFT and P99 of TPOT are within the targets; False for no request.

        A burst at the start may last so long that no request is left to measure.
        """
        return (
            len(timeline.requests) > 0
            and p99(timeline.ttft_s()) <= self.ttft_slo_s
            and p99(pace_s(timeline)) <= self.tpot_slo_s
        )


SMALL: Final = PaperWorkload("S-S", 128, 128, 0.3, 0.15)
SUMMARIES: Final = PaperWorkload("L-S", 2048, 128, 2.25, 0.13)
CODE: Final = PaperWorkload("S-L", 128, 2048, 0.125, 0.2)
PRODUCTION: Final = PaperWorkload("BurstGPT", 1024, 256, 0.4, 0.2, is_bursty=True)
SPREAD: Final = replace(PRODUCTION, name="BurstGPT with spread lengths", length_cv=1.0)
WORKLOADS: Final = {one.name: one for one in (SMALL, SUMMARIES, CODE, PRODUCTION, SPREAD)}


@dataclass(frozen=True)
class System:
    """A placement and its pools: prefill instances, decode instances, and elastic ones."""

    placement: str = "phasor"
    pools: Sequence[int] = (3, 3, 2)
    alpha: float = 1.0
    """Factor of the prefill cost per squared token."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of Phasor."""

    @property
    def roles(self) -> list[Role]:
        """Role of each instance at the start."""
        roles: tuple[Role, ...] = ("prefill", "decode", "both")
        return [role for role, count in zip(roles, self.pools, strict=True) for _ in range(count)]


SPLITS: Final = {
    f"{num_prefill}P/{NUM_INSTANCES - num_prefill}D": System(
        "distserve", (num_prefill, NUM_INSTANCES - num_prefill, 0)
    )
    for num_prefill in (2, 3, 4, 5, 6)
}
"""DistServe by its static split."""
SYSTEMS: Final = SPLITS | {
    name: System(**own) for name, own in paper_file("phasor")["systems"].items()
}


class GpuCluster:
    """Eight GPUs with one model, and the prefill cost that is calibrated on them."""

    def __init__(self, model: str) -> None:
        profile = f"{model}@{GPU}:phasor"
        self.instance = Instance.preset(profile, max_num_seqs=256, max_tokens=STEP_TOKENS)
        self.fabric = Fabric.of_model(model, bytes_per_s=25e9)
        tokens, peak = np.array(CALIBRATED_TOKENS), gpu_of(GPU).flops_per_s
        measured_s = [self.instance.prefill_s(int(count)) for count in tokens]
        (square_s, token_s), *_ = np.linalg.lstsq(np.stack([tokens**2, tokens], 1), measured_s)
        fitted = {"alpha": float(square_s * peak), "beta": float(token_s * peak)}
        self.cost = PrefillCost(**fitted, peak_flop_per_s=peak, model=model, device=GPU)

    def placement(self, system: System, workload: PaperWorkload) -> Placement:
        """Return a fresh placement, which expects outputs of the workload's mean."""
        settings: dict[str, Any] = dict(system.settings)
        if system.placement in ("splitwise", "phasor"):
            settings["output_tokens"] = workload.output_tokens
        if system.placement == "phasor":
            settings["cost"] = replace(self.cost, alpha=system.alpha * self.cost.alpha)
            settings["ttft_slo_s"] = workload.ttft_slo_s
        return load_placement(system.placement, **settings)

    def run(
        self, system: System, placement: Placement, requests: Requests, **more: Any
    ) -> ClusterRun:
        """Serve requests; prompts run first and whole, as in vLLM on GPUs without chunks.

        `more` are further arguments of `simulate_cluster`.
        """
        return simulate_cluster(
            requests,
            placement,
            partial(PrefillFirst, max_tokens=STEP_TOKENS, padded=False),
            [self.instance] * sum(system.pools),
            fabric=self.fabric,
            roles=system.roles,
            **more,
        )

    def meets_slo(self, system: System, workload: PaperWorkload, clients: int, seed: int) -> bool:
        """Return whether a closed loop keeps TTFT P99 and TPOT P99 within their budgets."""
        count = max(REQUESTS_PER_CLIENT * clients, 2 * clients + LEAST_MEASURED)
        requests = workload.closed_loop(count, clients, seed)
        placement = self.placement(system, workload)
        timeline = self.run(system, placement, requests, clients=clients).timeline
        # Measured are requests sent after the prefill of the burst at the start, but for the last
        # ones, which run beside fewer others.
        row = np.arange(count)
        started_s = timeline.first_token_s[:clients].max()
        is_warm = (row >= clients) & (timeline.requests.arrival_s >= started_s)
        return workload.slo_is_met(timeline.take(is_warm & (row < count - clients)))


def pace_s(timeline: Timeline) -> Floats:
    """Return TPOT of the requests with two tokens or more."""
    return tpot_s(timeline)[timeline.requests.output_tokens > 1]


def p99(values: Floats) -> float:
    """Return the 99th percentile; inf where a value is missing."""
    return np.inf if np.isnan(values).any() else float(np.percentile(values, 99))


class Sampled(Placement):
    """Another placement, with samples of its instances twice a second."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        for trait in get_type_hints(Placement):
            setattr(self, trait, getattr(placement, trait))
        self.rows: list[tuple[Any, ...]] = []
        self.next_s = 0.0

    def samples(self) -> pd.DataFrame:
        """Return one row per sample and instance; `queued` requests have no first token."""
        columns = ["at_s", "instance", "role", "free", "decoding", "queued"]
        return pd.DataFrame(self.rows, columns=columns)

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return self.placement.place(request, instances)

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        return self.placement.at_prefill_end(request, instance, instances)

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> Sequence[Move | SetRole]:
        if now_s >= self.next_s:
            self.next_s += 0.5
            for view in instances:
                counts = view.num_answering, view.num_waiting + view.num_prefilling
                place = now_s, view.instance_id, view.role
                self.rows.append((*place, view.unclaimed_blocks, *counts))
        return self.placement.tick(now_s, instances)


def fragmentation(samples: pd.DataFrame, large_blocks: int, total_blocks: int) -> Floats:
    """Return at each time the share of the decode instances' KV memory that is unusable (H_frag).

    Unusable is the rest of the free blocks after as many bursts of `large_blocks` as fit.
    """
    decoding = samples[samples["role"] != "prefill"]
    unusable = np.maximum(0, decoding["free"].to_numpy()) % large_blocks
    _, index = np.unique(decoding["at_s"], return_inverse=True)
    return np.bincount(index, unusable) / (np.bincount(index) * total_blocks)


IDLE_W, PREFILL_W = 55.0, 250.0
DECODE_W: Final = (130.0, 200.0)
"""Power of one decode, and of a full batch."""


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
