"""Phasor's test bed: workloads, systems, eight GPUs, and the meters that read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Final, get_type_hints

import numpy as np
import pandas as pd

from benchmarks.papers.runs import paper_file
from benchmarks.papers.slai import trace_lengths
from scheduler_adapters.placement import InstanceId, Move, Placement, SetRole, load_placement
from scheduler_adapters.placements.freeness import PAPER
from scheduler_adapters.policies.prefill_first import PrefillFirst
from scheduler_adapters.simulator.cluster import ClusterRun, simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.timeline.latency_metrics import tpot_s
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import InstanceView, LoadView, RequestView, Role
from scheduler_adapters.workload.arrivals import ARRIVAL_STREAM, LENGTH_STREAM, arrivals_s
from scheduler_adapters.workload.requests import Floats, Ints, Requests, make_requests

NUM_INSTANCES: Final = 8
GPU: Final = "v100-32g"
STEP_TOKENS: Final = 2**20
"""No limit in effect: the paper scales prefill batches past 8 prompts (2.2)."""
PARAMETERS: Final = {"qwen2.5-7b": 1.0, "llama-3-8b": 1.05}
"""P_m: parameters of a model as a multiple of Qwen2.5-7B's (B.3)."""
REQUESTS_PER_CLIENT: Final = 3
LEAST_MEASURED: Final = 200
Pieces = Sequence[tuple[float, float, float]]
"""Requests per second, from a start to an end in seconds."""
SHOCK: Final[Pieces] = ((5.0, 0.0, 90.0), (25.0, 90.0, 120.0), (5.0, 120.0, 180.0))
PLATEAU: Final[Pieces] = ((5.0, 0.0, 300.0), (25.0, 300.0, 420.0), (5.0, 420.0, 500.0))
BURST_CV: Final = 3.0


@dataclass(frozen=True)
class PaperWorkload:
    """Mean lengths of Table 1, those of a bucket of ShareGPT, and targets of Table 3."""

    name: str
    prompt_tokens: int
    output_tokens: int
    ttft_slo_s: float
    tpot_slo_s: float
    is_bursty: bool = False
    """Gamma arrivals with CV 3; False: Poisson arrivals."""

    def requests(self, count: int, rate_per_s: float, seed: int) -> Requests:
        """Return requests that arrive at a rate."""
        cv = BURST_CV if self.is_bursty else 1.0
        arrival_s = arrivals_s(count, rate_per_s=rate_per_s, seed=seed, cv=cv)
        return replace(self.all_at_once(count, seed), arrival_s=arrival_s)

    def all_at_once(self, count: int, seed: int) -> Requests:
        """Return requests that arrive at 0 s."""
        random = np.random.default_rng((seed, LENGTH_STREAM))
        return make_requests(
            prompt_tokens=random.choice(bucket("prompt_tokens", self.prompt_tokens), count),
            output_tokens=random.choice(bucket("output_tokens", self.output_tokens), count),
        )

    def closed_loop(self, count: int, clients: int, seed: int) -> Requests:
        """Return requests for a closed loop; the first ones of the clients are partly answered."""
        # Clients would otherwise send together again and again.
        requests = self.all_at_once(count, seed)
        left = np.random.default_rng((seed, ARRIVAL_STREAM)).random(count)
        left[clients:] = 1.0
        output_tokens = np.ceil(requests.output_tokens * left).astype(int)
        return replace(requests, output_tokens=np.maximum(1, output_tokens))

    def shock(self, pieces: Pieces, seed: int) -> Requests:
        """Return requests with gamma arrivals at the rates of the pieces."""
        drawn = []
        for number, (rate_per_s, start_s, end_s) in enumerate(pieces):
            count = int(4 * rate_per_s * (end_s - start_s))
            draw = partial(arrivals_s, rate_per_s=rate_per_s, cv=BURST_CV)
            at_s = start_s + draw(count, seed=10 * seed + number)
            drawn.append(at_s[at_s < end_s])
        arrival_s = np.concatenate(drawn)
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


@cache
def bucket(column: str, mean: int) -> Ints:
    """Return the largest range of ShareGPT's lengths that has a mean.

    It has the shortest ones, or the longest for a mean above that of all. All lengths, scaled,
    stand for answers of 1,024 tokens or more: the longest of the trace has 1,024.
    """
    tokens: Ints = getattr(trace_lengths(), column)
    if mean >= tokens.max():
        tokens = np.maximum(1, np.rint(tokens * (mean / tokens.mean()))).astype(np.int64)
    else:
        sign = 1 if mean <= tokens.mean() else -1
        tokens = np.sort(sign * tokens)
        running_means = np.cumsum(tokens) / np.arange(1, len(tokens) + 1)
        tokens = np.abs(tokens[running_means <= sign * mean])
    return tokens


SMALL: Final = PaperWorkload("S-S", 128, 128, 0.3, 0.15)
SUMMARIES: Final = PaperWorkload("L-S", 2048, 128, 2.25, 0.13)
CODE: Final = PaperWorkload("S-L", 128, 2048, 0.125, 0.2)
PRODUCTION: Final = PaperWorkload("BurstGPT", 1024, 256, 0.4, 0.2, is_bursty=True)
MEDIUM: Final = PaperWorkload("M-M", 1024, 1024, 0.4, 0.2)
LARGE: Final = PaperWorkload("L-L", 2048, 512, 3.0, 0.18)
WORKLOADS: Final = {one.name: one for one in (SMALL, MEDIUM, LARGE, SUMMARIES, CODE, PRODUCTION)}


@dataclass(frozen=True)
class System:
    """A placement and its pools: prefill instances, decode instances, and elastic ones."""

    placement: str = "phasor"
    pools: Sequence[int] = (3, 3, 2)
    alpha: float = 1.0
    """Factor of the prefill cost per squared token."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the placement."""

    @property
    def roles(self) -> list[Role]:
        """Role of each instance at the start."""
        roles: tuple[Role, ...] = ("prefill", "decode", "both")
        return [role for role, count in zip(roles, self.pools, strict=True) for _ in range(count)]


SPLITS: Final = {
    f"{num_prefill}P/{NUM_INSTANCES - num_prefill}D": System(
        "distserve", (num_prefill, NUM_INSTANCES - num_prefill, 0)
    )
    for num_prefill in range(1, NUM_INSTANCES)
}
"""DistServe by its static split."""
SYSTEMS: Final = SPLITS | {
    name: System(**own) for name, own in paper_file("phasor")["systems"].items()
}


class GpuCluster:
    """Eight GPUs with one model, and the prefill cost by the constants of Table 4."""

    def __init__(self, model: str) -> None:
        profile = f"{model}@{GPU}:phasor"
        self.instance = Instance.preset(profile, max_num_seqs=256, max_tokens=STEP_TOKENS)
        self.fabric = Fabric.of_model(model, bytes_per_s=25e9)
        self.cost = replace(PAPER, beta=PARAMETERS[model] * PAPER.beta, model=model)

    def placement(self, system: System, workload: PaperWorkload) -> Placement:
        """Return a fresh placement, which expects outputs of the workload's mean."""
        settings: dict[str, Any] = dict(system.settings)
        if system.placement == "phasor":
            settings["output_tokens"] = workload.output_tokens
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
        self.rows: list[dict[str, Any]] = []
        self.next_s = 0.0
        self.head_tokens = 0
        """Context of the first request without a decode instance; 0 if there is none."""

    def samples(self) -> pd.DataFrame:
        """Return one row per sample and instance; `queued` requests have no first token."""
        return pd.DataFrame(self.rows)

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return self.placement.place(request, instances)

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        chosen = self.placement.at_prefill_end(request, instance, instances)
        self.head_tokens = request.context_tokens if chosen is None else 0
        return chosen

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> Sequence[Move | SetRole]:
        if now_s >= self.next_s:
            self.next_s += 0.5
            self.rows += [
                {
                    "at_s": now_s,
                    "instance": view.instance_id,
                    "role": view.role,
                    "free": view.unclaimed_blocks,
                    "decoding": view.num_answering,
                    "queued": view.num_waiting + view.num_prefilling,
                    "head": view.blocks_of(self.head_tokens),
                }
                for view in instances
            ]
        return self.placement.tick(now_s, instances)


def blocked_fraction(samples: pd.DataFrame, total_blocks: int) -> Floats:
    """Return at each time the share of the decode instances' KV memory that is unusable (H_frag).

    Free blocks are unusable while no instance has enough for the request at the head.
    """
    each = samples[samples["role"] != "prefill"].assign(free=samples["free"].clip(lower=0))
    found = each.groupby("at_s").agg({"free": ["sum", "max", "size"], "head": "max"}).to_numpy()
    free, most_free, count, head = found.T
    return np.where(head > most_free, free / (count * total_blocks), 0.0)


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
