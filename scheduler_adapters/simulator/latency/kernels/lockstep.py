"""Step times of a mixture of experts on data-parallel GPUs that step together.

Each GPU (rank) attends to its own requests; the experts are spread over all of them, so every
block waits for the slowest rank. The group is simulated as one instance: its batch is dealt out
evenly, and a step takes as long as the fullest rank plus the experts plus moving tokens to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from scheduler_adapters.simulator.latency.kernels.grid import Floats, Grid2, fill
from scheduler_adapters.simulator.latency.kernels.interconnect import Link, gather_and_scatter_s
from scheduler_adapters.simulator.latency.kernels.kernel_latency import MAX_TOKENS, KernelLatency
from scheduler_adapters.simulator.latency.kernels.layer_profile import read_layer_profile
from scheduler_adapters.simulator.latency.models import Chunk, LatencyModel
from scheduler_adapters.workload.tables import read_table
from scoring_service.errors import SchedulingError


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The expert layers of a model."""

    layers: int
    count: int
    per_token: int
    hidden: int
    """Width of a token's vector, 16 bit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LockstepLatency(LatencyModel):
    """`rank` times the fullest of `num_ranks`; `experts_s` what they do together."""

    rank: KernelLatency
    """One GPU without its experts."""
    num_ranks: int
    experts_s: Sequence[float]
    """[tokens of the step on all ranks]: experts and collectives of all layers."""

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        ranks: list[list[Chunk]] = [[] for _ in range(self.num_ranks)]
        loads = [0] * self.num_ranks
        for chunk in sorted(prefills, key=lambda chunk: -chunk[1]):
            emptiest = loads.index(min(loads))
            ranks[emptiest].append(chunk)
            loads[emptiest] += chunk[1]
        decodes = -(-num_decodes // self.num_ranks)
        context = round(decode_context * decodes / num_decodes) if num_decodes else 0
        tokens = num_decodes + sum(loads)
        if tokens >= len(self.experts_s):
            raise SchedulingError(
                f"the expert tables end before a step of {tokens} tokens; use a token budget of "
                f"at most {len(self.experts_s) - 1}"
            )
        fullest_s = max(
            self.rank.step_s(decodes, context, chunks) for chunks in ranks if decodes or chunks
        )
        return fullest_s + self.experts_s[tokens]


def read_expert_profile(
    folder: str | PathLike[str], *, experts: Experts, num_ranks: int, link: Link
) -> LockstepLatency:
    """The latency model of a layer profile with experts, on `num_ranks` GPUs.

    Raises:
        DataError: a table is missing or has other columns.
    """
    folder = Path(folder)
    exchange_s = gather_and_scatter_s(experts.hidden, num_ranks, link)
    experts_s = experts.layers * (_expert_s(folder, experts, num_ranks) + exchange_s)
    return LockstepLatency(
        rank=read_layer_profile(folder, layers=experts.layers),
        num_ranks=num_ranks,
        experts_s=experts_s.tolist(),
    )


def _expert_s(folder: Path, experts: Experts, num_ranks: int) -> Floats:
    """Seconds of one rank's experts in one layer, by tokens of all ranks (MAX_TOKENS + 1,).

    The profile counts the tokens on a rank after dispatch. vLLM's default dispatch gathers all
    tokens on every rank, which then holds its share of the experts. The router is taken as fair:
    each token picks its experts at random.
    """
    table = read_table(folder / "moe.parquet", ("tokens", "activated_experts", "time_us")).pivot(
        index="tokens", columns="activated_experts", values="time_us"
    )
    grid = Grid2(table.index, table.columns, fill(table, table.columns))
    tokens = np.arange(MAX_TOKENS + 1.0)
    untouched_fraction = (1 - experts.per_token / experts.count) ** tokens
    activated = experts.count / num_ranks * (1 - untouched_fraction)
    points = zip(tokens.tolist(), activated.tolist(), strict=True)
    expert_us = [grid.at(count, touched) for count, touched in points]
    return np.array(expert_us) * 1e-6
